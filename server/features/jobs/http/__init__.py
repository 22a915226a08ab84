"""The routes of jobs: what they take and answer. The work is the jobs process's: server/features/jobs/calls.py."""
