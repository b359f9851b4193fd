"""Define the ports of operations as small protocols over plain values. One conformance suite tests all adapters of
each.
"""
