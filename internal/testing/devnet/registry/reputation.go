// Code generated via abigen V2 - DO NOT EDIT.
// This file is a generated binding and any manual changes will be lost.

package registry

import (
	"bytes"
	"errors"
	"math/big"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/accounts/abi/bind/v2"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
)

// Reference imports to suppress errors if they are not otherwise used.
var (
	_ = bytes.Equal
	_ = errors.New
	_ = big.NewInt
	_ = common.Big1
	_ = types.BloomLookup
	_ = abi.ConvertType
)

// ReputationRegistryMetaData contains all meta data concerning the ReputationRegistry contract.
var ReputationRegistryMetaData = bind.MetaData{
	ABI: "[{\"inputs\":[],\"name\":\"InvalidInitialization\",\"type\":\"error\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"clientAddress\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"uint64\",\"name\":\"feedbackIndex\",\"type\":\"uint64\"}],\"name\":\"FeedbackRevoked\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":false,\"internalType\":\"uint64\",\"name\":\"version\",\"type\":\"uint64\"}],\"name\":\"Initialized\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"clientAddress\",\"type\":\"address\"},{\"indexed\":false,\"internalType\":\"uint64\",\"name\":\"feedbackIndex\",\"type\":\"uint64\"},{\"indexed\":false,\"internalType\":\"int128\",\"name\":\"value\",\"type\":\"int128\"},{\"indexed\":false,\"internalType\":\"uint8\",\"name\":\"valueDecimals\",\"type\":\"uint8\"},{\"indexed\":true,\"internalType\":\"string\",\"name\":\"indexedTag1\",\"type\":\"string\"},{\"indexed\":false,\"internalType\":\"string\",\"name\":\"tag1\",\"type\":\"string\"},{\"indexed\":false,\"internalType\":\"string\",\"name\":\"tag2\",\"type\":\"string\"},{\"indexed\":false,\"internalType\":\"string\",\"name\":\"endpoint\",\"type\":\"string\"},{\"indexed\":false,\"internalType\":\"string\",\"name\":\"feedbackURI\",\"type\":\"string\"},{\"indexed\":false,\"internalType\":\"bytes32\",\"name\":\"feedbackHash\",\"type\":\"bytes32\"}],\"name\":\"NewFeedback\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"clientAddress\",\"type\":\"address\"},{\"indexed\":false,\"internalType\":\"uint64\",\"name\":\"feedbackIndex\",\"type\":\"uint64\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"responder\",\"type\":\"address\"},{\"indexed\":false,\"internalType\":\"string\",\"name\":\"responseURI\",\"type\":\"string\"},{\"indexed\":false,\"internalType\":\"bytes32\",\"name\":\"responseHash\",\"type\":\"bytes32\"}],\"name\":\"ResponseAppended\",\"type\":\"event\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"internalType\":\"address\",\"name\":\"clientAddress\",\"type\":\"address\"},{\"internalType\":\"uint64\",\"name\":\"feedbackIndex\",\"type\":\"uint64\"},{\"internalType\":\"string\",\"name\":\"responseURI\",\"type\":\"string\"},{\"internalType\":\"bytes32\",\"name\":\"responseHash\",\"type\":\"bytes32\"}],\"name\":\"appendResponse\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"}],\"name\":\"getClients\",\"outputs\":[{\"internalType\":\"address[]\",\"name\":\"\",\"type\":\"address[]\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"getIdentityRegistry\",\"outputs\":[{\"internalType\":\"address\",\"name\":\"\",\"type\":\"address\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"internalType\":\"address\",\"name\":\"clientAddress\",\"type\":\"address\"}],\"name\":\"getLastIndex\",\"outputs\":[{\"internalType\":\"uint64\",\"name\":\"\",\"type\":\"uint64\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"internalType\":\"address\",\"name\":\"clientAddress\",\"type\":\"address\"},{\"internalType\":\"uint64\",\"name\":\"feedbackIndex\",\"type\":\"uint64\"},{\"internalType\":\"address[]\",\"name\":\"responders\",\"type\":\"address[]\"}],\"name\":\"getResponseCount\",\"outputs\":[{\"internalType\":\"uint64\",\"name\":\"count\",\"type\":\"uint64\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"getVersion\",\"outputs\":[{\"internalType\":\"string\",\"name\":\"\",\"type\":\"string\"}],\"stateMutability\":\"pure\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"internalType\":\"int128\",\"name\":\"value\",\"type\":\"int128\"},{\"internalType\":\"uint8\",\"name\":\"valueDecimals\",\"type\":\"uint8\"},{\"internalType\":\"string\",\"name\":\"tag1\",\"type\":\"string\"},{\"internalType\":\"string\",\"name\":\"tag2\",\"type\":\"string\"},{\"internalType\":\"string\",\"name\":\"endpoint\",\"type\":\"string\"},{\"internalType\":\"string\",\"name\":\"feedbackURI\",\"type\":\"string\"},{\"internalType\":\"bytes32\",\"name\":\"feedbackHash\",\"type\":\"bytes32\"}],\"name\":\"giveFeedback\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"identityRegistry_\",\"type\":\"address\"}],\"name\":\"initialize\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"internalType\":\"address\",\"name\":\"clientAddress\",\"type\":\"address\"},{\"internalType\":\"uint64\",\"name\":\"feedbackIndex\",\"type\":\"uint64\"}],\"name\":\"readFeedback\",\"outputs\":[{\"internalType\":\"int128\",\"name\":\"value\",\"type\":\"int128\"},{\"internalType\":\"uint8\",\"name\":\"valueDecimals\",\"type\":\"uint8\"},{\"internalType\":\"string\",\"name\":\"tag1\",\"type\":\"string\"},{\"internalType\":\"string\",\"name\":\"tag2\",\"type\":\"string\"},{\"internalType\":\"bool\",\"name\":\"isRevoked\",\"type\":\"bool\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"internalType\":\"uint64\",\"name\":\"feedbackIndex\",\"type\":\"uint64\"}],\"name\":\"revokeFeedback\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"}]",
	ID:  "ReputationRegistry",
	Bin: "0x608080604052346015576111a9908161001b8239f35b600080fdfe6080604052600436101561001257600080fd5b60003560e01c80630d8e6e2c14610cf2578063232b081014610c5d5780633c036a7e146104fd57806342dd519c1461043f5780634ab3ca991461038e5780636e04cacd14610308578063bc4d861b146102df578063c2349ab2146101ac578063c4d66de8146100e05763f2d817591461008a57600080fd5b346100db5760403660031901126100db576100a3610d7e565b600435600052600260205260406000209060018060a01b031660005260205260206001600160401b0360406000205416604051908152f35b600080fd5b346100db5760203660031901126100db576004356001600160a01b038116908190036100db576000546001600160a01b03811661019b57811561015f576bffffffffffffffffffffffff60a01b16176000557fc7f505b2f371ae2175ee4913f4499e1f2633a7b5936321eed1cdaeb6115181d2602060405160018152a1005b60405162461bcd60e51b81526020600482015260146024820152736e6f206964656e7469747920726567697374727960601b6044820152606490fd5b63f92ee8a960e01b60005260046000fd5b346100db5760a03660031901126100db576004356101c8610d7e565b906101d1610d94565b906064356001600160401b0381116100db576101f1903690600401610daa565b6101fc8486856110c7565b5080156102a6577fb1c6be0b5b8aef6539e2fac0fd131a2faa7b49edf8e505b5eb0ad487d56051d49161028a91846000526004602052604060002060018060a01b03881660005260205260406000206001600160401b03871660005260205261026a60406000203390610f37565b6001600160401b0360405196168652606060208701526060860191610fc3565b608435604085015233946001600160a01b0316939081900390a4005b60405162461bcd60e51b8152602060048201526011602482015270656d70747920726573706f6e736555524960781b6044820152606490fd5b346100db5760003660031901126100db576000546040516001600160a01b039091168152602090f35b346100db5760803660031901126100db57610321610d7e565b610329610d94565b90606435906001600160401b0382116100db57366023830112156100db578160040135906001600160401b0382116100db573660248360051b850101116100db57602093602461037d940191600435610fe4565b6001600160401b0360405191168152f35b346100db5760403660031901126100db57600435602435906001600160401b038216918281036100db576103c39033836110c7565b805460ff8160881c166104085760ff60881b1916600160881b17905533907f25156fd3288212246d8b008d5921fde376c71ed14ac2e072a506eb06fde6d09d600080a4005b60405162461bcd60e51b815260206004820152600f60248201526e185b1c9958591e481c995d9bdad959608a1b6044820152606490fd5b346100db5760203660031901126100db57600435600052600160205260406000206040518060208354918281520190819360005260206000209060005b8181106104de5750505081610492910382610dd7565b6040519182916020830190602084525180915260408301919060005b8181106104bc575050500390f35b82516001600160a01b03168452859450602093840193909201916001016104ae565b82546001600160a01b031684526020909301926001928301920161047c565b346100db576101003660031901126100db576004356024359081600f0b8092036100db576044359060ff82168092036100db576064356001600160401b0381116100db5761054f903690600401610daa565b906084356001600160401b0381116100db5761056f903690600401610daa565b9060a4356001600160401b0381116100db5761058f903690600401610daa565b91909260c4356001600160401b0381116100db576105b1903690600401610daa565b95909660128a11610c20576f4b3b4ca85a86c47a098a223fffffffff198b121580610c06575b15610bcd576000546040516331a9108f60e11b8152600481018b90526001600160a01b0390911690602081602481855afa908115610b2457600091610bae575b5060018060a01b031690813314918215610b30575b508115610ab5575b50610a70576000898152600260209081526040808320338452909152902080549a906001600160401b036106698d8216610ed6565b16809c6001600160401b03191617905560018b14610a54575b60405160a08101908082106001600160401b03831117610972578b916040528d81528c6020820184815260408301906000825260406106c236898b610f7d565b60608601908152936106d5368c8e610f7d565b6080878101918252600098895260036020908152848a20338b528152848a20938a529290925291909620945185549251935171ffffffffffffffffffffffffffffffffffff199093166fffffffffffffffffffffffffffffffff909116179290951b60ff60801b169190911790151560881b60ff60881b1617825551805160018301916001600160401b038211610972576107708354610df8565b601f81116109fe575b50602090601f83116001146109935760029493929160009183610988575b50508160011b916000199060031b1c19161790555b0190518051906001600160401b0382116109725781906107cc8454610df8565b601f8111610914575b50602090601f83116001146108af576000926108a4575b50508160011b916000199060031b1c19161790555b6040518284823780838101600081520390209b6040519b8c5260208c015260408b015260608a0161010090526101008a019061083c92610fc3565b9088820360808a015261084e92610fc3565b9086820360a088015261086092610fc3565b9084820360c086015261087292610fc3565b9160e43560e0820152803393037f6a4a61743519c9d648a14e6493f47dbe3ff1aa29e7785c96c8326a205e58febc91a4005b015190508f806107ec565b60008581528281209350601f198516905b8181106108fc57509084600195949392106108e3575b505050811b019055610801565b015160001960f88460031b161c191690558f80806108d6565b929360206001819287860151815501950193016108c0565b828111156107d557909150836000526020600020601f840160051c9060208510610969575b849392601f0160051c829003910160005b8281106109585750506107d5565b60008183015585945060010161094a565b60009150610939565b634e487b7160e01b600052604160045260246000fd5b015190503880610797565b90601f1983169184600052816000209260005b8181106109e65750916001939185600298979694106109cd575b505050811b0190556107ac565b015160001960f88460031b161c191690553880806109c0565b929360206001819287860151815501950193016109a6565b8281111561077957836000526020600020601f840160051c9060208510610a4b575b81601f9101920160051c039060005b828110610a3d575050610779565b600082820155600101610a2f565b60009150610a20565b896000526001602052610a6b336040600020610f37565b610682565b60405162461bcd60e51b815260206004820152601c60248201527f666565646261636b20666f72206f6e652773206f776e206167656e74000000006044820152606490fd5b905060208a60246040518094819363020604bf60e21b835260048301525afa908115610b2457600091610af5575b506001600160a01b031633148c610634565b610b17915060203d602011610b1d575b610b0f8183610dd7565b81019061117d565b8c610ae3565b503d610b05565b6040513d6000823e3d90fd5b9091506040519063e985e9c560e01b82526004820152336024820152602081604481855afa908115610b2457600091610b6c575b50908d61062c565b6020813d602011610ba6575b81610b8560209383610dd7565b81010312610ba25751908115158203610b9f57508d610b64565b80fd5b5080fd5b3d9150610b78565b610bc7915060203d602011610b1d57610b0f8183610dd7565b8d610617565b60405162461bcd60e51b81526020600482015260116024820152700ecc2d8eaca40c4caf2dedcc84062ca667607b1b6044820152606490fd5b506f4b3b4ca85a86c47a098a2240000000008b13156105d7565b60405162461bcd60e51b81526020600482015260156024820152746d6f7265207468616e20313820646563696d616c7360581b6044820152606490fd5b346100db5760603660031901126100db57610cd4610c8d610c7c610d7e565b610c84610d94565b906004356110c7565b805460ff610ce2610cac6002610ca560018701610e32565b9501610e32565b60405195869585600f0b8752848660801c16602088015260a0604088015260a0870190610d3d565b908582036060870152610d3d565b9160881c16151560808301520390f35b346100db5760003660031901126100db57610d396040805190610d158183610dd7565b60058252640322e302e360dc1b602083015251918291602083526020830190610d3d565b0390f35b919082519283825260005b848110610d69575050826000602080949584010152601f8019910116010190565b80602080928401015182828601015201610d48565b602435906001600160a01b03821682036100db57565b604435906001600160401b03821682036100db57565b9181601f840112156100db578235916001600160401b0383116100db57602083818601950101116100db57565b90601f801991011681019081106001600160401b0382111761097257604052565b90600182811c92168015610e28575b6020831014610e1257565b634e487b7160e01b600052602260045260246000fd5b91607f1691610e07565b9060405191826000825492610e4684610df8565b8084529360018116908115610eb45750600114610e6d575b50610e6b92500383610dd7565b565b90506000929192526020600020906000915b818310610e98575050906020610e6b9282010138610e5e565b6020919350806001915483858901015201910190918492610e7f565b905060209250610e6b94915060ff191682840152151560051b82010138610e5e565b6001600160401b03166001600160401b038114610ef35760010190565b634e487b7160e01b600052601160045260246000fd5b8054821015610f215760005260206000200190600090565b634e487b7160e01b600052603260045260246000fd5b80546801000000000000000081101561097257610f5991600182018155610f09565b81546001600160a01b0393841660039290921b91821b9390911b1916919091179055565b9291926001600160401b0382116109725760405191610fa6601f8201601f191660200184610dd7565b8294818452818301116100db578281602093846000960137010152565b908060209392818452848401376000828201840152601f01601f1916010190565b9493916040916000966000526004602052826000209060018060a01b0316600052602052816000206001600160401b036000921682526020522081156110b75760009080545b808310611038575050505050565b90919395929460005b868110156110a7576110538685610f09565b90546001600160a01b03600584901b8b01358181169360031b9290921c1690600090839003610b9f57501461108a57600101611041565b50949261109e600191979597939293610ed6565b965b019161102a565b50949295936001909291926110a0565b546001600160401b031693505050565b916001600160401b03169182151580611148575b1561111057600052600360205260406000209060018060a01b0316600052602052604060002090600052602052604060002090565b60405162461bcd60e51b815260206004820152601060248201526f6e6f207375636820666565646261636b60801b6044820152606490fd5b50806000526002602052604060002060018060a01b0383166000526020526001600160401b03604060002054168311156110db565b908160209103126100db57516001600160a01b03811681036100db579056fea164736f6c6343000825000a",
}

// ReputationRegistry is an auto generated Go binding around an Ethereum contract.
type ReputationRegistry struct {
	abi abi.ABI
}

// GetABI returns the ABI associated with this contract binding.
func (c *ReputationRegistry) GetABI() abi.ABI {
	return c.abi
}

// NewReputationRegistry creates a new instance of ReputationRegistry.
func NewReputationRegistry() *ReputationRegistry {
	parsed, err := ReputationRegistryMetaData.ParseABI()
	if err != nil {
		panic(errors.New("invalid ABI: " + err.Error()))
	}
	return &ReputationRegistry{abi: *parsed}
}

// Instance creates a wrapper for a deployed contract instance at the given address.
// Use this to create the instance object passed to abigen v2 library functions Call, Transact, etc.
func (c *ReputationRegistry) Instance(backend bind.ContractBackend, addr common.Address) *bind.BoundContract {
	return bind.NewBoundContract(addr, c.abi, backend, backend, backend)
}

// PackAppendResponse is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xc2349ab2.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function appendResponse(uint256 agentId, address clientAddress, uint64 feedbackIndex, string responseURI, bytes32 responseHash) returns()
func (reputationRegistry *ReputationRegistry) PackAppendResponse(agentId *big.Int, clientAddress common.Address, feedbackIndex uint64, responseURI string, responseHash [32]byte) []byte {
	enc, err := reputationRegistry.abi.Pack("appendResponse", agentId, clientAddress, feedbackIndex, responseURI, responseHash)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackAppendResponse is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xc2349ab2.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function appendResponse(uint256 agentId, address clientAddress, uint64 feedbackIndex, string responseURI, bytes32 responseHash) returns()
func (reputationRegistry *ReputationRegistry) TryPackAppendResponse(agentId *big.Int, clientAddress common.Address, feedbackIndex uint64, responseURI string, responseHash [32]byte) ([]byte, error) {
	return reputationRegistry.abi.Pack("appendResponse", agentId, clientAddress, feedbackIndex, responseURI, responseHash)
}

// PackGetClients is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x42dd519c.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function getClients(uint256 agentId) view returns(address[])
func (reputationRegistry *ReputationRegistry) PackGetClients(agentId *big.Int) []byte {
	enc, err := reputationRegistry.abi.Pack("getClients", agentId)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackGetClients is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x42dd519c.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function getClients(uint256 agentId) view returns(address[])
func (reputationRegistry *ReputationRegistry) TryPackGetClients(agentId *big.Int) ([]byte, error) {
	return reputationRegistry.abi.Pack("getClients", agentId)
}

// UnpackGetClients is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x42dd519c.
//
// Solidity: function getClients(uint256 agentId) view returns(address[])
func (reputationRegistry *ReputationRegistry) UnpackGetClients(data []byte) ([]common.Address, error) {
	out, err := reputationRegistry.abi.Unpack("getClients", data)
	if err != nil {
		return *new([]common.Address), err
	}
	out0 := *abi.ConvertType(out[0], new([]common.Address)).(*[]common.Address)
	return out0, nil
}

// PackGetIdentityRegistry is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xbc4d861b.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function getIdentityRegistry() view returns(address)
func (reputationRegistry *ReputationRegistry) PackGetIdentityRegistry() []byte {
	enc, err := reputationRegistry.abi.Pack("getIdentityRegistry")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackGetIdentityRegistry is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xbc4d861b.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function getIdentityRegistry() view returns(address)
func (reputationRegistry *ReputationRegistry) TryPackGetIdentityRegistry() ([]byte, error) {
	return reputationRegistry.abi.Pack("getIdentityRegistry")
}

// UnpackGetIdentityRegistry is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0xbc4d861b.
//
// Solidity: function getIdentityRegistry() view returns(address)
func (reputationRegistry *ReputationRegistry) UnpackGetIdentityRegistry(data []byte) (common.Address, error) {
	out, err := reputationRegistry.abi.Unpack("getIdentityRegistry", data)
	if err != nil {
		return *new(common.Address), err
	}
	out0 := *abi.ConvertType(out[0], new(common.Address)).(*common.Address)
	return out0, nil
}

// PackGetLastIndex is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xf2d81759.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function getLastIndex(uint256 agentId, address clientAddress) view returns(uint64)
func (reputationRegistry *ReputationRegistry) PackGetLastIndex(agentId *big.Int, clientAddress common.Address) []byte {
	enc, err := reputationRegistry.abi.Pack("getLastIndex", agentId, clientAddress)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackGetLastIndex is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xf2d81759.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function getLastIndex(uint256 agentId, address clientAddress) view returns(uint64)
func (reputationRegistry *ReputationRegistry) TryPackGetLastIndex(agentId *big.Int, clientAddress common.Address) ([]byte, error) {
	return reputationRegistry.abi.Pack("getLastIndex", agentId, clientAddress)
}

// UnpackGetLastIndex is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0xf2d81759.
//
// Solidity: function getLastIndex(uint256 agentId, address clientAddress) view returns(uint64)
func (reputationRegistry *ReputationRegistry) UnpackGetLastIndex(data []byte) (uint64, error) {
	out, err := reputationRegistry.abi.Unpack("getLastIndex", data)
	if err != nil {
		return *new(uint64), err
	}
	out0 := *abi.ConvertType(out[0], new(uint64)).(*uint64)
	return out0, nil
}

// PackGetResponseCount is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x6e04cacd.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function getResponseCount(uint256 agentId, address clientAddress, uint64 feedbackIndex, address[] responders) view returns(uint64 count)
func (reputationRegistry *ReputationRegistry) PackGetResponseCount(agentId *big.Int, clientAddress common.Address, feedbackIndex uint64, responders []common.Address) []byte {
	enc, err := reputationRegistry.abi.Pack("getResponseCount", agentId, clientAddress, feedbackIndex, responders)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackGetResponseCount is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x6e04cacd.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function getResponseCount(uint256 agentId, address clientAddress, uint64 feedbackIndex, address[] responders) view returns(uint64 count)
func (reputationRegistry *ReputationRegistry) TryPackGetResponseCount(agentId *big.Int, clientAddress common.Address, feedbackIndex uint64, responders []common.Address) ([]byte, error) {
	return reputationRegistry.abi.Pack("getResponseCount", agentId, clientAddress, feedbackIndex, responders)
}

// UnpackGetResponseCount is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x6e04cacd.
//
// Solidity: function getResponseCount(uint256 agentId, address clientAddress, uint64 feedbackIndex, address[] responders) view returns(uint64 count)
func (reputationRegistry *ReputationRegistry) UnpackGetResponseCount(data []byte) (uint64, error) {
	out, err := reputationRegistry.abi.Unpack("getResponseCount", data)
	if err != nil {
		return *new(uint64), err
	}
	out0 := *abi.ConvertType(out[0], new(uint64)).(*uint64)
	return out0, nil
}

// PackGetVersion is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x0d8e6e2c.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function getVersion() pure returns(string)
func (reputationRegistry *ReputationRegistry) PackGetVersion() []byte {
	enc, err := reputationRegistry.abi.Pack("getVersion")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackGetVersion is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x0d8e6e2c.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function getVersion() pure returns(string)
func (reputationRegistry *ReputationRegistry) TryPackGetVersion() ([]byte, error) {
	return reputationRegistry.abi.Pack("getVersion")
}

// UnpackGetVersion is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x0d8e6e2c.
//
// Solidity: function getVersion() pure returns(string)
func (reputationRegistry *ReputationRegistry) UnpackGetVersion(data []byte) (string, error) {
	out, err := reputationRegistry.abi.Unpack("getVersion", data)
	if err != nil {
		return *new(string), err
	}
	out0 := *abi.ConvertType(out[0], new(string)).(*string)
	return out0, nil
}

// PackGiveFeedback is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x3c036a7e.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function giveFeedback(uint256 agentId, int128 value, uint8 valueDecimals, string tag1, string tag2, string endpoint, string feedbackURI, bytes32 feedbackHash) returns()
func (reputationRegistry *ReputationRegistry) PackGiveFeedback(agentId *big.Int, value *big.Int, valueDecimals uint8, tag1 string, tag2 string, endpoint string, feedbackURI string, feedbackHash [32]byte) []byte {
	enc, err := reputationRegistry.abi.Pack("giveFeedback", agentId, value, valueDecimals, tag1, tag2, endpoint, feedbackURI, feedbackHash)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackGiveFeedback is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x3c036a7e.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function giveFeedback(uint256 agentId, int128 value, uint8 valueDecimals, string tag1, string tag2, string endpoint, string feedbackURI, bytes32 feedbackHash) returns()
func (reputationRegistry *ReputationRegistry) TryPackGiveFeedback(agentId *big.Int, value *big.Int, valueDecimals uint8, tag1 string, tag2 string, endpoint string, feedbackURI string, feedbackHash [32]byte) ([]byte, error) {
	return reputationRegistry.abi.Pack("giveFeedback", agentId, value, valueDecimals, tag1, tag2, endpoint, feedbackURI, feedbackHash)
}

// PackInitialize is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xc4d66de8.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function initialize(address identityRegistry_) returns()
func (reputationRegistry *ReputationRegistry) PackInitialize(identityRegistry common.Address) []byte {
	enc, err := reputationRegistry.abi.Pack("initialize", identityRegistry)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackInitialize is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xc4d66de8.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function initialize(address identityRegistry_) returns()
func (reputationRegistry *ReputationRegistry) TryPackInitialize(identityRegistry common.Address) ([]byte, error) {
	return reputationRegistry.abi.Pack("initialize", identityRegistry)
}

// PackReadFeedback is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x232b0810.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function readFeedback(uint256 agentId, address clientAddress, uint64 feedbackIndex) view returns(int128 value, uint8 valueDecimals, string tag1, string tag2, bool isRevoked)
func (reputationRegistry *ReputationRegistry) PackReadFeedback(agentId *big.Int, clientAddress common.Address, feedbackIndex uint64) []byte {
	enc, err := reputationRegistry.abi.Pack("readFeedback", agentId, clientAddress, feedbackIndex)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackReadFeedback is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x232b0810.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function readFeedback(uint256 agentId, address clientAddress, uint64 feedbackIndex) view returns(int128 value, uint8 valueDecimals, string tag1, string tag2, bool isRevoked)
func (reputationRegistry *ReputationRegistry) TryPackReadFeedback(agentId *big.Int, clientAddress common.Address, feedbackIndex uint64) ([]byte, error) {
	return reputationRegistry.abi.Pack("readFeedback", agentId, clientAddress, feedbackIndex)
}

// ReadFeedbackOutput serves as a container for the return parameters of contract
// method ReadFeedback.
type ReadFeedbackOutput struct {
	Value         *big.Int
	ValueDecimals uint8
	Tag1          string
	Tag2          string
	IsRevoked     bool
}

// UnpackReadFeedback is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x232b0810.
//
// Solidity: function readFeedback(uint256 agentId, address clientAddress, uint64 feedbackIndex) view returns(int128 value, uint8 valueDecimals, string tag1, string tag2, bool isRevoked)
func (reputationRegistry *ReputationRegistry) UnpackReadFeedback(data []byte) (ReadFeedbackOutput, error) {
	out, err := reputationRegistry.abi.Unpack("readFeedback", data)
	outstruct := new(ReadFeedbackOutput)
	if err != nil {
		return *outstruct, err
	}
	outstruct.Value = abi.ConvertType(out[0], new(big.Int)).(*big.Int)
	outstruct.ValueDecimals = *abi.ConvertType(out[1], new(uint8)).(*uint8)
	outstruct.Tag1 = *abi.ConvertType(out[2], new(string)).(*string)
	outstruct.Tag2 = *abi.ConvertType(out[3], new(string)).(*string)
	outstruct.IsRevoked = *abi.ConvertType(out[4], new(bool)).(*bool)
	return *outstruct, nil
}

// PackRevokeFeedback is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x4ab3ca99.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function revokeFeedback(uint256 agentId, uint64 feedbackIndex) returns()
func (reputationRegistry *ReputationRegistry) PackRevokeFeedback(agentId *big.Int, feedbackIndex uint64) []byte {
	enc, err := reputationRegistry.abi.Pack("revokeFeedback", agentId, feedbackIndex)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackRevokeFeedback is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x4ab3ca99.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function revokeFeedback(uint256 agentId, uint64 feedbackIndex) returns()
func (reputationRegistry *ReputationRegistry) TryPackRevokeFeedback(agentId *big.Int, feedbackIndex uint64) ([]byte, error) {
	return reputationRegistry.abi.Pack("revokeFeedback", agentId, feedbackIndex)
}

// ReputationRegistryFeedbackRevoked represents a FeedbackRevoked event raised by the ReputationRegistry contract.
type ReputationRegistryFeedbackRevoked struct {
	AgentId       *big.Int
	ClientAddress common.Address
	FeedbackIndex uint64
	Raw           *types.Log // Blockchain specific contextual infos
}

const ReputationRegistryFeedbackRevokedEventName = "FeedbackRevoked"

// ContractEventName returns the user-defined event name.
func (ReputationRegistryFeedbackRevoked) ContractEventName() string {
	return ReputationRegistryFeedbackRevokedEventName
}

// UnpackFeedbackRevokedEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event FeedbackRevoked(uint256 indexed agentId, address indexed clientAddress, uint64 indexed feedbackIndex)
func (reputationRegistry *ReputationRegistry) UnpackFeedbackRevokedEvent(log *types.Log) (*ReputationRegistryFeedbackRevoked, error) {
	event := "FeedbackRevoked"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != reputationRegistry.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(ReputationRegistryFeedbackRevoked)
	if len(log.Data) > 0 {
		if err := reputationRegistry.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range reputationRegistry.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}

// ReputationRegistryInitialized represents a Initialized event raised by the ReputationRegistry contract.
type ReputationRegistryInitialized struct {
	Version uint64
	Raw     *types.Log // Blockchain specific contextual infos
}

const ReputationRegistryInitializedEventName = "Initialized"

// ContractEventName returns the user-defined event name.
func (ReputationRegistryInitialized) ContractEventName() string {
	return ReputationRegistryInitializedEventName
}

// UnpackInitializedEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event Initialized(uint64 version)
func (reputationRegistry *ReputationRegistry) UnpackInitializedEvent(log *types.Log) (*ReputationRegistryInitialized, error) {
	event := "Initialized"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != reputationRegistry.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(ReputationRegistryInitialized)
	if len(log.Data) > 0 {
		if err := reputationRegistry.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range reputationRegistry.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}

// ReputationRegistryNewFeedback represents a NewFeedback event raised by the ReputationRegistry contract.
type ReputationRegistryNewFeedback struct {
	AgentId       *big.Int
	ClientAddress common.Address
	FeedbackIndex uint64
	Value         *big.Int
	ValueDecimals uint8
	IndexedTag1   common.Hash
	Tag1          string
	Tag2          string
	Endpoint      string
	FeedbackURI   string
	FeedbackHash  [32]byte
	Raw           *types.Log // Blockchain specific contextual infos
}

const ReputationRegistryNewFeedbackEventName = "NewFeedback"

// ContractEventName returns the user-defined event name.
func (ReputationRegistryNewFeedback) ContractEventName() string {
	return ReputationRegistryNewFeedbackEventName
}

// UnpackNewFeedbackEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event NewFeedback(uint256 indexed agentId, address indexed clientAddress, uint64 feedbackIndex, int128 value, uint8 valueDecimals, string indexed indexedTag1, string tag1, string tag2, string endpoint, string feedbackURI, bytes32 feedbackHash)
func (reputationRegistry *ReputationRegistry) UnpackNewFeedbackEvent(log *types.Log) (*ReputationRegistryNewFeedback, error) {
	event := "NewFeedback"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != reputationRegistry.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(ReputationRegistryNewFeedback)
	if len(log.Data) > 0 {
		if err := reputationRegistry.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range reputationRegistry.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}

// ReputationRegistryResponseAppended represents a ResponseAppended event raised by the ReputationRegistry contract.
type ReputationRegistryResponseAppended struct {
	AgentId       *big.Int
	ClientAddress common.Address
	FeedbackIndex uint64
	Responder     common.Address
	ResponseURI   string
	ResponseHash  [32]byte
	Raw           *types.Log // Blockchain specific contextual infos
}

const ReputationRegistryResponseAppendedEventName = "ResponseAppended"

// ContractEventName returns the user-defined event name.
func (ReputationRegistryResponseAppended) ContractEventName() string {
	return ReputationRegistryResponseAppendedEventName
}

// UnpackResponseAppendedEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event ResponseAppended(uint256 indexed agentId, address indexed clientAddress, uint64 feedbackIndex, address indexed responder, string responseURI, bytes32 responseHash)
func (reputationRegistry *ReputationRegistry) UnpackResponseAppendedEvent(log *types.Log) (*ReputationRegistryResponseAppended, error) {
	event := "ResponseAppended"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != reputationRegistry.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(ReputationRegistryResponseAppended)
	if len(log.Data) > 0 {
		if err := reputationRegistry.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range reputationRegistry.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}

// UnpackError attempts to decode the provided error data using user-defined
// error definitions.
func (reputationRegistry *ReputationRegistry) UnpackError(raw []byte) (any, error) {
	if bytes.Equal(raw[:4], reputationRegistry.abi.Errors["InvalidInitialization"].ID.Bytes()[:4]) {
		return reputationRegistry.UnpackInvalidInitializationError(raw[4:])
	}
	return nil, errors.New("Unknown error")
}

// ReputationRegistryInvalidInitialization represents a InvalidInitialization error raised by the ReputationRegistry contract.
type ReputationRegistryInvalidInitialization struct {
}

// ErrorID returns the hash of canonical representation of the error's signature.
//
// Solidity: error InvalidInitialization()
func ReputationRegistryInvalidInitializationErrorID() common.Hash {
	return common.HexToHash("0xf92ee8a957075833165f68c320933b1a1294aafc84ee6e0dd3fb178008f9aaf5")
}

// UnpackInvalidInitializationError is the Go binding used to decode the provided
// error data into the corresponding Go error struct.
//
// Solidity: error InvalidInitialization()
func (reputationRegistry *ReputationRegistry) UnpackInvalidInitializationError(raw []byte) (*ReputationRegistryInvalidInitialization, error) {
	out := new(ReputationRegistryInvalidInitialization)
	if err := reputationRegistry.abi.UnpackIntoInterface(out, "InvalidInitialization", raw); err != nil {
		return nil, err
	}
	return out, nil
}
