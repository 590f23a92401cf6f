// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

/// Emitter logs the records in its calldata, for trials that need events which no registry emits. All agents have the
/// same tokenURI.
contract Emitter {
    string private uri;
    mapping(bytes32 agent => mapping(bytes32 client => uint256)) private counts;

    constructor(string memory tokenURI_) {
        uri = tokenURI_;
    }

    function tokenURI(uint256) external view returns (string memory) {
        return uri;
    }

    /// getLastIndex returns how many counted records name the agent and the client in their second and third topic.
    function getLastIndex(uint256 agentId, address client) external view returns (uint256) {
        return counts[bytes32(agentId)][bytes32(uint256(uint160(client)))];
    }

    /// A record has the number of topics, plus 256 if it is counted; the length of the data; four words for topics; the
    /// data.
    fallback() external {
        require(msg.data.length >= 192);
        for (uint256 pos = 0; pos < msg.data.length; ) {
            (uint256 head, uint256 size, bytes32 t1, bytes32 t2, bytes32 t3, bytes32 t4) =
                abi.decode(msg.data[pos:pos + 192], (uint256, uint256, bytes32, bytes32, bytes32, bytes32));
            bytes memory data = msg.data[pos + 192:pos + 192 + size];
            if (head & 256 != 0) counts[t2][t3]++;
            assembly {
                switch and(head, 255)
                case 1 { log1(add(data, 32), size, t1) }
                case 2 { log2(add(data, 32), size, t1, t2) }
                case 3 { log3(add(data, 32), size, t1, t2, t3) }
                case 4 { log4(add(data, 32), size, t1, t2, t3, t4) }
                default { invalid() }
            }
            pos += 192 + size;
        }
    }
}
