"""Start Spark and its JVM, and run frames: the only PySpark plumbing."""
