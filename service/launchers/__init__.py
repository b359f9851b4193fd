"""Starting and ending worker processes."""
