"""The statements there are: what each says, as a value, and how it is read."""
