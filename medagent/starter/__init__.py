"""The starter world and the base policy that is packaged with it."""
