"""The service driven by the client libraries and programs that people have."""
