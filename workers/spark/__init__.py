"""Session, frames and schemas: the only PySpark plumbing."""
