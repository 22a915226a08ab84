"""A fleet of servers in virtual time: how many machines a day of traffic needs, how long requests take, what it costs.

Each replica is the server's own admission, batch manager and shared page. What is simulated: the engine, the balancer,
the autoscaler and the start of machines.
"""
