"""Policy and critic on one base, advantages, objectives, experience, callbacks."""
