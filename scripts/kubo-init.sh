#!/bin/sh
# Kubo's image runs this before each start. It configures a gateway that only this host's workers use.
set -eu
ipfs config Addresses.API /ip4/127.0.0.1/tcp/5001 # access to the API gives full control of the node
ipfs config Addresses.Gateway /ip4/0.0.0.0/tcp/8080
ipfs config --json Gateway.DeserializedResponses false # blocks only, because the worker verifies them itself
ipfs config Routing.Type autoclient                    # queries the network but does not serve it
ipfs config Datastore.StorageMax 5GB
