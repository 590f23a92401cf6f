// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Agents, IAgents} from "IAgents.sol";

/// A minimal ERC-8004 validation registry for development chains, see IdentityRegistry.sol. Summaries and lists are left out.
contract ValidationRegistry {
    using Agents for IAgents;

    struct Status {
        address validator;
        uint256 agentId;
        uint8 response;
        bytes32 responseHash;
        string tag;
        uint256 lastUpdate;
    }

    event Initialized(uint64 version);
    event ValidationRequest(address indexed validatorAddress, uint256 indexed agentId, string requestURI, bytes32 indexed requestHash);
    event ValidationResponse(
        address indexed validatorAddress,
        uint256 indexed agentId,
        bytes32 indexed requestHash,
        uint8 response,
        string responseURI,
        bytes32 responseHash,
        string tag
    );

    error InvalidInitialization();

    IAgents private _agents;
    mapping(bytes32 => Status) private _statuses;

    function initialize(address identityRegistry_) external {
        if (address(_agents) != address(0)) revert InvalidInitialization();
        require(identityRegistry_ != address(0), "no identity registry");
        _agents = IAgents(identityRegistry_);
        emit Initialized(1);
    }

    function getVersion() external pure returns (string memory) {
        return "2.0.0";
    }

    function getIdentityRegistry() external view returns (address) {
        return address(_agents);
    }

    function validationRequest(address validatorAddress, uint256 agentId, string calldata requestURI, bytes32 requestHash) external {
        require(validatorAddress != address(0), "no validator");
        require(_agents.controls(msg.sender, agentId), "neither owner nor operator of the agent");
        Status storage status = _statuses[requestHash];
        require(status.validator == address(0), "the request exists");
        status.validator = validatorAddress;
        status.agentId = agentId;
        status.lastUpdate = block.timestamp;
        emit ValidationRequest(validatorAddress, agentId, requestURI, requestHash);
    }

    /// A validator may respond more than once; the newest response is kept.
    function validationResponse(
        bytes32 requestHash,
        uint8 response,
        string calldata responseURI,
        bytes32 responseHash,
        string calldata tag
    ) external {
        Status storage status = _existing(requestHash);
        require(status.validator == msg.sender, "not the validator");
        require(response <= 100, "response beyond 100");
        status.response = response;
        status.responseHash = responseHash;
        status.tag = tag;
        status.lastUpdate = block.timestamp;
        emit ValidationResponse(msg.sender, status.agentId, requestHash, response, responseURI, responseHash, tag);
    }

    function getValidationStatus(bytes32 requestHash)
        external
        view
        returns (address validatorAddress, uint256 agentId, uint8 response, bytes32 responseHash, string memory tag, uint256 lastUpdate)
    {
        Status storage status = _existing(requestHash);
        return (status.validator, status.agentId, status.response, status.responseHash, status.tag, status.lastUpdate);
    }

    function _existing(bytes32 requestHash) private view returns (Status storage status) {
        status = _statuses[requestHash];
        require(status.validator != address(0), "no such request");
    }
}
