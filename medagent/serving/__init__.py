"""`medagent serve`: an agent over HTTP, for people and programs."""
