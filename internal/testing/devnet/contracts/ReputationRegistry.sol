// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Agents, IAgents} from "IAgents.sol";

/// A minimal ERC-8004 reputation registry for development chains, see IdentityRegistry.sol. Summaries are left out.
contract ReputationRegistry {
    using Agents for IAgents;

    struct Feedback {
        int128 value;
        uint8 valueDecimals;
        bool revoked;
        string tag1;
        string tag2;
    }

    event FeedbackRevoked(uint256 indexed agentId, address indexed clientAddress, uint64 indexed feedbackIndex);
    event Initialized(uint64 version);
    event NewFeedback(
        uint256 indexed agentId,
        address indexed clientAddress,
        uint64 feedbackIndex,
        int128 value,
        uint8 valueDecimals,
        string indexed indexedTag1,
        string tag1,
        string tag2,
        string endpoint,
        string feedbackURI,
        bytes32 feedbackHash
    );
    event ResponseAppended(
        uint256 indexed agentId,
        address indexed clientAddress,
        uint64 feedbackIndex,
        address indexed responder,
        string responseURI,
        bytes32 responseHash
    );

    error InvalidInitialization();

    int128 private constant MAX_VALUE = 1e38;

    IAgents private _agents;
    mapping(uint256 => address[]) private _clients;
    mapping(uint256 => mapping(address => uint64)) private _lastIndex;
    mapping(uint256 => mapping(address => mapping(uint64 => Feedback))) private _feedback;
    mapping(uint256 => mapping(address => mapping(uint64 => address[]))) private _responders;

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

    function giveFeedback(
        uint256 agentId,
        int128 value,
        uint8 valueDecimals,
        string calldata tag1,
        string calldata tag2,
        string calldata endpoint,
        string calldata feedbackURI,
        bytes32 feedbackHash
    ) external {
        require(valueDecimals <= 18, "more than 18 decimals");
        require(value >= -MAX_VALUE && value <= MAX_VALUE, "value beyond 1e38");
        require(!_agents.controls(msg.sender, agentId), "feedback for one's own agent");
        uint64 index = ++_lastIndex[agentId][msg.sender];
        if (index == 1) _clients[agentId].push(msg.sender);
        _feedback[agentId][msg.sender][index] = Feedback(value, valueDecimals, false, tag1, tag2);
        emit NewFeedback(agentId, msg.sender, index, value, valueDecimals, tag1, tag1, tag2, endpoint, feedbackURI, feedbackHash);
    }

    function revokeFeedback(uint256 agentId, uint64 feedbackIndex) external {
        Feedback storage feedback = _existing(agentId, msg.sender, feedbackIndex);
        require(!feedback.revoked, "already revoked");
        feedback.revoked = true;
        emit FeedbackRevoked(agentId, msg.sender, feedbackIndex);
    }

    function appendResponse(
        uint256 agentId,
        address clientAddress,
        uint64 feedbackIndex,
        string calldata responseURI,
        bytes32 responseHash
    ) external {
        _existing(agentId, clientAddress, feedbackIndex);
        require(bytes(responseURI).length > 0, "empty responseURI");
        _responders[agentId][clientAddress][feedbackIndex].push(msg.sender);
        emit ResponseAppended(agentId, clientAddress, feedbackIndex, msg.sender, responseURI, responseHash);
    }

    function readFeedback(uint256 agentId, address clientAddress, uint64 feedbackIndex)
        external
        view
        returns (int128 value, uint8 valueDecimals, string memory tag1, string memory tag2, bool isRevoked)
    {
        Feedback storage feedback = _existing(agentId, clientAddress, feedbackIndex);
        return (feedback.value, feedback.valueDecimals, feedback.tag1, feedback.tag2, feedback.revoked);
    }

    function getLastIndex(uint256 agentId, address clientAddress) external view returns (uint64) {
        return _lastIndex[agentId][clientAddress];
    }

    function getClients(uint256 agentId) external view returns (address[] memory) {
        return _clients[agentId];
    }

    /// Counts the responses to one feedback, those of the given responders or, if none is given, all.
    function getResponseCount(uint256 agentId, address clientAddress, uint64 feedbackIndex, address[] calldata responders)
        external
        view
        returns (uint64 count)
    {
        address[] storage all = _responders[agentId][clientAddress][feedbackIndex];
        if (responders.length == 0) return uint64(all.length);
        for (uint256 i; i < all.length; i++) {
            for (uint256 j; j < responders.length; j++) {
                if (all[i] == responders[j]) {
                    count++;
                    break;
                }
            }
        }
    }

    function _existing(uint256 agentId, address client, uint64 index) private view returns (Feedback storage) {
        require(index > 0 && index <= _lastIndex[agentId][client], "no such feedback");
        return _feedback[agentId][client][index];
    }
}
