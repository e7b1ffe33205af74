"""How the packaged base policy is made."""
