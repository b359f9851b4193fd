"""Find the entries of the audit trail by their actor, so that each keeps only its newest (expand).

Revision ID: 0006
Revises: 0005
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("create index audit_entry_actor on tidefill.audit_entry (actor, id)")


def downgrade() -> None:
    op.execute("drop index tidefill.audit_entry_actor")
