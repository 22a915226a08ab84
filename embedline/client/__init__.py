"""The client: many texts in many requests at once, into numpy arrays. Knows servers by HTTP alone.

`scheduling` and `runner` carry out a call, `tasks` and `embed` know routes, bodies and answers. What is below them
(`sender`, `endpoints`, `pool`, `connection`, `answer`, `base_url`, `failure`) knows no route and no batch.
"""
