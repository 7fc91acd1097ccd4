"""A loopback HTTP proxy that records what programs send to models and get back.

The bytes pass untouched and at once; what they say is read and stored beside, on a thread of its own. A fault of the
recording never reaches the traffic.
"""
