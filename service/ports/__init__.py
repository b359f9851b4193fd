"""What operations need of the world, as small protocols: plain values both ways, each with one examination for every
adapter.
"""
