"""How a view is maintained. *Stateless* is the only strategy so far; keyed and full are planned."""
