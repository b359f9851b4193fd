"""The pages of the service in a browser: what `service.operations.status` reads, as HTML, and forms for its operations.

A page is one file in `service.pages.data`, one template, and one line in `service.pages.table`. `docs/pages.md` has an
example. Next: `service.pages.app`.
"""
