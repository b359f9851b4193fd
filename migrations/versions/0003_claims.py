"""Claims of idempotency keys: a fencing number, an expiry time, and the accepted statement (expand).

The previous release neither renews a claim nor reads `held_until`. For this release its claims lapse at once.

Revision ID: 0003
Revises: 0002
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

CLAIMS = """
create sequence tidefill.key_claim;
alter table tidefill.idempotency_key
    add column claim bigint not null default 0,
    add column held_until timestamptz not null default '-infinity',
    add column statement bigint;
create index idempotency_key_claim on tidefill.idempotency_key (claim) where response is null;
create index idempotency_key_statement on tidefill.idempotency_key (statement) where response is null;
"""


def upgrade() -> None:
    op.execute(CLAIMS)


def downgrade() -> None:
    op.execute("alter table tidefill.idempotency_key drop column claim, drop column held_until, drop column statement")
    op.execute("drop sequence tidefill.key_claim")
