// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

/// A minimal ERC-8004 identity registry for development chains. It has the events, errors, return shapes and the order of events of
/// the deployed one, as far as Herald reads them; it has no proxy, no signatures and no enumeration. Never deploy it for real.
contract IdentityRegistry {
    struct MetadataEntry {
        string metadataKey;
        bytes metadataValue;
    }

    event Approval(address indexed owner, address indexed approved, uint256 indexed tokenId);
    event ApprovalForAll(address indexed owner, address indexed operator, bool approved);
    event Initialized(uint64 version);
    event MetadataSet(uint256 indexed agentId, string indexed indexedMetadataKey, string metadataKey, bytes metadataValue);
    event MetadataUpdate(uint256 _tokenId);
    event Registered(uint256 indexed agentId, string agentURI, address indexed owner);
    event Transfer(address indexed from, address indexed to, uint256 indexed tokenId);
    event URIUpdated(uint256 indexed agentId, string newURI, address indexed updatedBy);

    error ERC721IncorrectOwner(address sender, uint256 tokenId, address owner);
    error ERC721InsufficientApproval(address operator, uint256 tokenId);
    error ERC721InvalidApprover(address approver);
    error ERC721InvalidOperator(address operator);
    error ERC721InvalidOwner(address owner);
    error ERC721InvalidReceiver(address receiver);
    error ERC721NonexistentToken(uint256 tokenId);
    error InvalidInitialization();

    string private constant WALLET = "agentWallet";

    string public constant name = "AgentIdentity";
    string public constant symbol = "AGENT";

    bool private _initialized;
    uint256 private _lastId;
    mapping(uint256 => address) private _owners;
    mapping(address => uint256) private _balances;
    mapping(uint256 => address) private _approved;
    mapping(address => mapping(address => bool)) private _operators;
    mapping(uint256 => string) private _uris;
    mapping(uint256 => mapping(string => bytes)) private _metadata;

    function initialize() external {
        if (_initialized) revert InvalidInitialization();
        _initialized = true;
        emit Initialized(1);
    }

    function getVersion() external pure returns (string memory) {
        return "2.0.0";
    }

    function register() external returns (uint256 agentId) {
        agentId = _register();
        emit Registered(agentId, "", msg.sender);
        _setWallet(agentId, abi.encodePacked(msg.sender));
    }

    function register(string memory agentURI) external returns (uint256 agentId) {
        agentId = _register();
        _setURI(agentId, agentURI);
        emit Registered(agentId, agentURI, msg.sender);
        _setWallet(agentId, abi.encodePacked(msg.sender));
    }

    function register(string memory agentURI, MetadataEntry[] memory metadata) external returns (uint256 agentId) {
        agentId = _register();
        _setURI(agentId, agentURI);
        emit Registered(agentId, agentURI, msg.sender);
        _setWallet(agentId, abi.encodePacked(msg.sender));
        for (uint256 i; i < metadata.length; i++) {
            _setMetadata(agentId, metadata[i].metadataKey, metadata[i].metadataValue);
        }
    }

    function setAgentURI(uint256 agentId, string calldata newURI) external {
        _onlyAuthorized(agentId);
        _setURI(agentId, newURI);
        emit URIUpdated(agentId, newURI, msg.sender);
    }

    function setMetadata(uint256 agentId, string memory metadataKey, bytes memory metadataValue) external {
        _onlyAuthorized(agentId);
        _setMetadata(agentId, metadataKey, metadataValue);
    }

    function getMetadata(uint256 agentId, string memory metadataKey) external view returns (bytes memory) {
        return _metadata[agentId][metadataKey];
    }

    function getAgentWallet(uint256 agentId) external view returns (address) {
        ownerOf(agentId);
        return address(bytes20(_metadata[agentId][WALLET]));
    }

    function tokenURI(uint256 tokenId) external view returns (string memory) {
        ownerOf(tokenId);
        return _uris[tokenId];
    }

    function ownerOf(uint256 tokenId) public view returns (address) {
        address owner = _owners[tokenId];
        if (owner == address(0)) revert ERC721NonexistentToken(tokenId);
        return owner;
    }

    function balanceOf(address owner) external view returns (uint256) {
        if (owner == address(0)) revert ERC721InvalidOwner(owner);
        return _balances[owner];
    }

    function approve(address to, uint256 tokenId) external {
        address owner = ownerOf(tokenId);
        if (msg.sender != owner && !_operators[owner][msg.sender]) revert ERC721InvalidApprover(msg.sender);
        _approved[tokenId] = to;
        emit Approval(owner, to, tokenId);
    }

    function getApproved(uint256 tokenId) external view returns (address) {
        ownerOf(tokenId);
        return _approved[tokenId];
    }

    function setApprovalForAll(address operator, bool approved) external {
        if (operator == address(0)) revert ERC721InvalidOperator(operator);
        _operators[msg.sender][operator] = approved;
        emit ApprovalForAll(msg.sender, operator, approved);
    }

    function isApprovedForAll(address owner, address operator) external view returns (bool) {
        return _operators[owner][operator];
    }

    function transferFrom(address from, address to, uint256 tokenId) external {
        if (to == address(0)) revert ERC721InvalidReceiver(to);
        address owner = ownerOf(tokenId);
        if (!_authorized(owner, tokenId)) revert ERC721InsufficientApproval(msg.sender, tokenId);
        if (owner != from) revert ERC721IncorrectOwner(from, tokenId, owner);
        _setWallet(tokenId, "");
        delete _approved[tokenId];
        _balances[from]--;
        _balances[to]++;
        _owners[tokenId] = to;
        emit Transfer(from, to, tokenId);
    }

    function _register() private returns (uint256 agentId) {
        agentId = _lastId++;
        _owners[agentId] = msg.sender;
        _balances[msg.sender]++;
        emit Transfer(address(0), msg.sender, agentId);
    }

    function _setURI(uint256 agentId, string memory uri) private {
        _uris[agentId] = uri;
        emit MetadataUpdate(agentId);
    }

    function _setMetadata(uint256 agentId, string memory key, bytes memory value) private {
        require(keccak256(bytes(key)) != keccak256(bytes(WALLET)), "agentWallet is not set this way");
        _metadata[agentId][key] = value;
        emit MetadataSet(agentId, key, key, value);
    }

    function _setWallet(uint256 agentId, bytes memory value) private {
        _metadata[agentId][WALLET] = value;
        emit MetadataSet(agentId, WALLET, WALLET, value);
    }

    function _authorized(address owner, uint256 tokenId) private view returns (bool) {
        return msg.sender == owner || _operators[owner][msg.sender] || _approved[tokenId] == msg.sender;
    }

    function _onlyAuthorized(uint256 agentId) private view {
        require(_authorized(ownerOf(agentId), agentId), "neither owner nor operator of the agent");
    }
}
