"""Whole servers as replicas of Ray Serve. Ray is imported nowhere else."""
