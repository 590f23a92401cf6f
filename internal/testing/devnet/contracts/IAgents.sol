// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

/// What the other registries ask of the identity registry. ownerOf reverts for an agent that does not exist.
interface IAgents {
    function ownerOf(uint256 tokenId) external view returns (address);
    function getApproved(uint256 tokenId) external view returns (address);
    function isApprovedForAll(address owner, address operator) external view returns (bool);
}

library Agents {
    function controls(IAgents agents, address account, uint256 agentId) internal view returns (bool) {
        address owner = agents.ownerOf(agentId);
        return account == owner || agents.isApprovedForAll(owner, account) || agents.getApproved(agentId) == account;
    }
}
