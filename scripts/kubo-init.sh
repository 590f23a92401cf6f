#!/bin/sh
# Run by Kubo's image before each start: a gateway for this host's workers and nothing more.
set -eu
ipfs config Addresses.API /ip4/127.0.0.1/tcp/5001 # whoever reaches the API owns the node
ipfs config Addresses.Gateway /ip4/0.0.0.0/tcp/8080
ipfs config --json Gateway.DeserializedResponses false # blocks only: the worker verifies them itself
ipfs config Routing.Type autoclient                    # asks the network, does not serve it
ipfs config Datastore.StorageMax 5GB
