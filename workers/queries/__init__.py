"""How a view is maintained: stateless; keyed and full will stand beside it."""
