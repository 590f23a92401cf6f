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

// IdentityRegistryMetadataEntry is an auto generated low-level Go binding around an user-defined struct.
type IdentityRegistryMetadataEntry struct {
	MetadataKey   string
	MetadataValue []byte
}

// IdentityRegistryMetaData contains all meta data concerning the IdentityRegistry contract.
var IdentityRegistryMetaData = bind.MetaData{
	ABI: "[{\"inputs\":[{\"internalType\":\"address\",\"name\":\"sender\",\"type\":\"address\"},{\"internalType\":\"uint256\",\"name\":\"tokenId\",\"type\":\"uint256\"},{\"internalType\":\"address\",\"name\":\"owner\",\"type\":\"address\"}],\"name\":\"ERC721IncorrectOwner\",\"type\":\"error\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"operator\",\"type\":\"address\"},{\"internalType\":\"uint256\",\"name\":\"tokenId\",\"type\":\"uint256\"}],\"name\":\"ERC721InsufficientApproval\",\"type\":\"error\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"approver\",\"type\":\"address\"}],\"name\":\"ERC721InvalidApprover\",\"type\":\"error\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"operator\",\"type\":\"address\"}],\"name\":\"ERC721InvalidOperator\",\"type\":\"error\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"owner\",\"type\":\"address\"}],\"name\":\"ERC721InvalidOwner\",\"type\":\"error\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"receiver\",\"type\":\"address\"}],\"name\":\"ERC721InvalidReceiver\",\"type\":\"error\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"tokenId\",\"type\":\"uint256\"}],\"name\":\"ERC721NonexistentToken\",\"type\":\"error\"},{\"inputs\":[],\"name\":\"InvalidInitialization\",\"type\":\"error\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"address\",\"name\":\"owner\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"approved\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"uint256\",\"name\":\"tokenId\",\"type\":\"uint256\"}],\"name\":\"Approval\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"address\",\"name\":\"owner\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"operator\",\"type\":\"address\"},{\"indexed\":false,\"internalType\":\"bool\",\"name\":\"approved\",\"type\":\"bool\"}],\"name\":\"ApprovalForAll\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":false,\"internalType\":\"uint64\",\"name\":\"version\",\"type\":\"uint64\"}],\"name\":\"Initialized\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"indexed\":true,\"internalType\":\"string\",\"name\":\"indexedMetadataKey\",\"type\":\"string\"},{\"indexed\":false,\"internalType\":\"string\",\"name\":\"metadataKey\",\"type\":\"string\"},{\"indexed\":false,\"internalType\":\"bytes\",\"name\":\"metadataValue\",\"type\":\"bytes\"}],\"name\":\"MetadataSet\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":false,\"internalType\":\"uint256\",\"name\":\"_tokenId\",\"type\":\"uint256\"}],\"name\":\"MetadataUpdate\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"indexed\":false,\"internalType\":\"string\",\"name\":\"agentURI\",\"type\":\"string\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"owner\",\"type\":\"address\"}],\"name\":\"Registered\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"address\",\"name\":\"from\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"to\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"uint256\",\"name\":\"tokenId\",\"type\":\"uint256\"}],\"name\":\"Transfer\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"indexed\":false,\"internalType\":\"string\",\"name\":\"newURI\",\"type\":\"string\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"updatedBy\",\"type\":\"address\"}],\"name\":\"URIUpdated\",\"type\":\"event\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"to\",\"type\":\"address\"},{\"internalType\":\"uint256\",\"name\":\"tokenId\",\"type\":\"uint256\"}],\"name\":\"approve\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"owner\",\"type\":\"address\"}],\"name\":\"balanceOf\",\"outputs\":[{\"internalType\":\"uint256\",\"name\":\"\",\"type\":\"uint256\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"}],\"name\":\"getAgentWallet\",\"outputs\":[{\"internalType\":\"address\",\"name\":\"\",\"type\":\"address\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"tokenId\",\"type\":\"uint256\"}],\"name\":\"getApproved\",\"outputs\":[{\"internalType\":\"address\",\"name\":\"\",\"type\":\"address\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"internalType\":\"string\",\"name\":\"metadataKey\",\"type\":\"string\"}],\"name\":\"getMetadata\",\"outputs\":[{\"internalType\":\"bytes\",\"name\":\"\",\"type\":\"bytes\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"getVersion\",\"outputs\":[{\"internalType\":\"string\",\"name\":\"\",\"type\":\"string\"}],\"stateMutability\":\"pure\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"initialize\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"owner\",\"type\":\"address\"},{\"internalType\":\"address\",\"name\":\"operator\",\"type\":\"address\"}],\"name\":\"isApprovedForAll\",\"outputs\":[{\"internalType\":\"bool\",\"name\":\"\",\"type\":\"bool\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"name\",\"outputs\":[{\"internalType\":\"string\",\"name\":\"\",\"type\":\"string\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"tokenId\",\"type\":\"uint256\"}],\"name\":\"ownerOf\",\"outputs\":[{\"internalType\":\"address\",\"name\":\"\",\"type\":\"address\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"register\",\"outputs\":[{\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"}],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"string\",\"name\":\"agentURI\",\"type\":\"string\"},{\"components\":[{\"internalType\":\"string\",\"name\":\"metadataKey\",\"type\":\"string\"},{\"internalType\":\"bytes\",\"name\":\"metadataValue\",\"type\":\"bytes\"}],\"internalType\":\"structIdentityRegistry.MetadataEntry[]\",\"name\":\"metadata\",\"type\":\"tuple[]\"}],\"name\":\"register\",\"outputs\":[{\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"}],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"string\",\"name\":\"agentURI\",\"type\":\"string\"}],\"name\":\"register\",\"outputs\":[{\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"}],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"internalType\":\"string\",\"name\":\"newURI\",\"type\":\"string\"}],\"name\":\"setAgentURI\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"operator\",\"type\":\"address\"},{\"internalType\":\"bool\",\"name\":\"approved\",\"type\":\"bool\"}],\"name\":\"setApprovalForAll\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"internalType\":\"string\",\"name\":\"metadataKey\",\"type\":\"string\"},{\"internalType\":\"bytes\",\"name\":\"metadataValue\",\"type\":\"bytes\"}],\"name\":\"setMetadata\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"symbol\",\"outputs\":[{\"internalType\":\"string\",\"name\":\"\",\"type\":\"string\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"tokenId\",\"type\":\"uint256\"}],\"name\":\"tokenURI\",\"outputs\":[{\"internalType\":\"string\",\"name\":\"\",\"type\":\"string\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"from\",\"type\":\"address\"},{\"internalType\":\"address\",\"name\":\"to\",\"type\":\"address\"},{\"internalType\":\"uint256\",\"name\":\"tokenId\",\"type\":\"uint256\"}],\"name\":\"transferFrom\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"}]",
	ID:  "IdentityRegistry",
	Bin: "0x60808060405234601557611476908161001b8239f35b600080fdfe6080604052600436101561001257600080fd5b60003560e01c806233950914610b4c57806306fdde0314610afd578063081812fc14610abf578063095ea7b3146109f45780630af28bd31461092f5780630d8e6e2c146108e85780631aa3a0081461087d57806323b872dd14610703578063466648da1461069b5780636352211e1461066b57806370a08231146106175780638129fc1c146105b25780638ea42286146103b257806395d89b411461036b578063a22cb465146102ca578063c87b56dd1461028a578063cb4799f2146101f6578063e985e9c51461019b5763f2c298be146100ec57600080fd5b34610196576020366003190112610196576004356001600160401b0381116101965761011e6020913690600401610cf0565b610126611064565b906101318183610f35565b817fca52e62c367d81bb2e328eb795f7c7ba24afb478408a26c0e201d155c449bc4a60405185815280610168339588830190610c59565b0390a361018e6040513360601b8482015260148152610188603482610c15565b8261112a565b604051908152f35b600080fd5b34610196576040366003190112610196576101b4610c7e565b6101bc610c94565b9060018060a01b0316600052600560205260406000209060018060a01b0316600052602052602060ff604060002054166040519015158152f35b34610196576040366003190112610196576024356001600160401b0381116101965761026b6102726102566020610234610286953690600401610cf0565b6004356000526007825260406000208260405194838680955193849201610c36565b82019081520301902060405192838092610de1565b0382610c15565b604051918291602083526020830190610c59565b0390f35b34610196576020366003190112610196576004356102a781610d80565b50600052600660205261028661026b610272604060002060405192838092610de1565b34610196576040366003190112610196576102e3610c7e565b60243590811515809203610196576001600160a01b031690811561035657336000526005602052604060002082600052602052604060002060ff1981541660ff83161790556040519081527f17307eab39ab6107e8899845ad3d59bd9653f200f220920489ca2b5937696c3160203392a3005b50630b61174360e31b60005260045260246000fd5b3461019657600036600319011261019657610286604080519061038e8183610c15565b60058252641051d1539560da1b602083015251918291602083526020830190610c59565b34610196576040366003190112610196576004356001600160401b038111610196576103e2903690600401610cf0565b6024356001600160401b0381116101965736602382011215610196578060040135906001600160401b03821161059c578160051b90604051926104286020840185610c15565b835260246020840192820101903682116101965760248101925b828410610503578585610453611064565b9161045e8184610f35565b827fca52e62c367d81bb2e328eb795f7c7ba24afb478408a26c0e201d155c449bc4a604051602081528061049733956020830190610c59565b0390a36104be6040513360601b6020820152601481526104b8603482610c15565b8361112a565b60005b81518110156104f857806104f26104da60019385610db7565b515160206104e88487610db7565b51015190866112c0565b016104c1565b602083604051908152f35b83356001600160401b038111610196578201604060231982360301126101965760405191604083018381106001600160401b0382111761059c5760405260248201356001600160401b038111610196576105639060243691850101610cf0565b83526044820135926001600160401b0384116101965761058d602094936024869536920101610cf0565b83820152815201930192610442565b634e487b7160e01b600052604160045260246000fd5b346101965760003660031901126101965760005460ff81166106065760019060ff1916176000557fc7f505b2f371ae2175ee4913f4499e1f2633a7b5936321eed1cdaeb6115181d2602060405160018152a1005b63f92ee8a960e01b60005260046000fd5b34610196576020366003190112610196576001600160a01b03610638610c7e565b1680156106575760005260036020526020604060002054604051908152f35b6322718ad960e21b60005260045260246000fd5b34610196576020366003190112610196576020610689600435610d80565b6040516001600160a01b039091168152f35b34610196576060366003190112610196576004356024356001600160401b038111610196576106ce903690600401610cf0565b90604435916001600160401b038311610196576106f2610701933690600401610cf0565b916106fc81610e64565b6112c0565b005b346101965760603660031901126101965761071c610c7e565b610724610c94565b604435916001600160a01b039091169081156108685761074383610d80565b9061074e848361125d565b1561084f576001600160a01b0390811691168181036108335750602061078460405161077a8382610c15565b600081528561112a565b600084815260048252604080822080546001600160a01b031916905583825260038352902080549190821561081d57600292600019019055836000526003815260406000206107d38154610d71565b905584600052526040600020826bffffffffffffffffffffffff60a01b8254161790557fddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef600080a4005b634e487b7160e01b600052601160045260246000fd5b83826364283d7b60e01b60005260045260245260445260646000fd5b8363177e802f60e01b6000523360045260245260446000fd5b50633250574960e11b60005260045260246000fd5b34610196576000366003190112610196576020610898611064565b604051828152600083820152817fca52e62c367d81bb2e328eb795f7c7ba24afb478408a26c0e201d155c449bc4a60403393a361018e6040513360601b8482015260148152610188603482610c15565b3461019657600036600319011261019657610286604080519061090b8183610c15565b60058252640322e302e360dc1b602083015251918291602083526020830190610c59565b34610196576040366003190112610196576024356004356001600160401b0382116101965736602383011215610196578160040135916001600160401b0383116101965760248101906024843692010111610196577f3a2c7fffc2cba7582c690e3b82c453ea02a308326a98a3ad7576c606336409fb906109af83610e64565b6109c36109bd368684610caa565b84610f35565b83604051916020835281602084015260408301376000604085830101526040813395601f80199101168101030190a3005b3461019657604036600319011261019657610a0d610c7e565b602435906001600160a01b03610a2283610d80565b16908133141580610a9b575b610a8657600083815260046020526040812080546001600160a01b0319166001600160a01b039390931692831790559091907f8c5be1e5ebec7d5bd14f71427d1e84f3dd0314c0f7b2291e5b200ac8c7c3b9259080a4005b63a9fbf51f60e01b6000523360045260246000fd5b50600082815260056020908152604080832033845290915290205460ff1615610a2e565b3461019657602036600319011261019657600435610adc81610d80565b506000526004602052602060018060a01b0360406000205416604051908152f35b34610196576000366003190112610196576102866040805190610b208183610c15565b600d82526c4167656e744964656e7469747960981b602083015251918291602083526020830190610c59565b3461019657602036600319011261019657600435610b6981610d80565b5060005260076020526020610b99816040600020610b85610d0e565b908260405194838680955193849201610c36565b820190815203019020610bac8154610d37565b9080601f8311610c06575b50546bffffffffffffffffffffffff198116919060148210610be1575b50506040519060601c8152f35b6bffffffffffffffffffffffff1960149290920360031b82901b161690508280610bd4565b90506000528160002083610bb7565b90601f801991011681019081106001600160401b0382111761059c57604052565b60005b838110610c495750506000910152565b8181015183820152602001610c39565b90602091610c7281518092818552858086019101610c36565b601f01601f1916010190565b600435906001600160a01b038216820361019657565b602435906001600160a01b038216820361019657565b9291926001600160401b03821161059c5760405191610cd3601f8201601f191660200184610c15565b829481845281830111610196578281602093846000960137010152565b9080601f8301121561019657816020610d0b93359101610caa565b90565b60405190610d1d604083610c15565b600b82526a1859d95b9d15d85b1b195d60aa1b6020830152565b90600182811c92168015610d67575b6020831014610d5157565b634e487b7160e01b600052602260045260246000fd5b91607f1691610d46565b600019811461081d5760010190565b6000818152600260205260409020546001600160a01b0316908115610da3575090565b637e27328960e01b60005260045260246000fd5b8051821015610dcb5760209160051b010190565b634e487b7160e01b600052603260045260246000fd5b60009291815491610df183610d37565b8083529260018116908115610e475750600114610e0d57505050565b60009081526020812093945091925b838310610e2d575060209250010190565b600181602092949394548385870101520191019190610e1c565b915050602093945060ff929192191683830152151560051b010190565b610e7690610e7181610d80565b61125d565b15610e7d57565b60405162461bcd60e51b815260206004820152602760248201527f6e656974686572206f776e6572206e6f72206f70657261746f72206f6620746860448201526619481859d95b9d60ca1b6064820152608490fd5b919091601f8311610ee3575b505050565b818311610eef57505050565b60005260206000206020601f830160051c9210610f2c575b81601f9101920160051c039060005b82811015610ede57600082820155600101610f16565b60009150610f07565b919091806000526006602052604060002083516001600160401b03811161059c57610f6a81610f648454610d37565b84610ed2565b6020601f8211600114610fd857816020949392610fc1927ff8e1a15aba9398e019f0b49df1a4fde98ee17ae345cb5f6b5e2c27f5033e8ce79798600092610fcd575b50508160011b916000199060031b1c19161790565b90555b604051908152a1565b015190503880610fac565b601f1982169583600052816000209660005b81811061104c575096600192849260209796957ff8e1a15aba9398e019f0b49df1a4fde98ee17ae345cb5f6b5e2c27f5033e8ce7999a10611033575b505050811b019055610fc4565b015160001960f88460031b161c19169055388080611026565b83830151895560019098019760209384019301610fea565b6001549061107182610d71565b60015581806000526002602052604060002060018060a01b0333166bffffffffffffffffffffffff60a01b82541617905533600052600360205260406000206110ba8154610d71565b90553360007fddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef8180a4565b6110fd90602060405192828480945193849201610c36565b810103902090565b909161111c610d0b93604084526040840190610c59565b916020818403910152610c59565b80600052600760205261114560206040600020610b85610d0e565b82019081520301902082516001600160401b03811161059c5761116c81610f648454610d37565b6020601f82116001146111f957908061119b926000916111ee575b508160011b916000199060031b1c19161790565b90555b7f2c149ed548c6d2993cd73efe187df6eccabe4538091b33adbd25fafdb8a1468b6111c7610d0e565b926111d96111d3610d0e565b946110e5565b936111e960405192839283611105565b0390a3565b905085015138611187565b601f1982169083600052806000209160005b8181106112455750908360019493921061122c575b5050811b01905561119e565b86015160001960f88460031b161c191690553880611220565b9192602060018192868b01518155019401920161120b565b60018060a01b03169081331491821561129b575b50811561127c575090565b6000908152600460205260409020546001600160a01b03163314919050565b600090815260056020908152604080832033845290915290205460ff16915038611271565b9291928151602083019081206112d4610d0e565b60208151910120146114245760206113049183600052600782526040600020604051809481938851928391610c36565b820190815203019020938051946001600160401b03861161059c576113338661132d8354610d37565b83610ed2565b602095601f811160011461139d5780611386917f2c149ed548c6d2993cd73efe187df6eccabe4538091b33adbd25fafdb8a1468b9596979860009161139257508160011b916000199060031b1c19161790565b90555b6111d9846110e5565b905084015138611187565b601f19811682600052876000209060005b81811061140c5750907f2c149ed548c6d2993cd73efe187df6eccabe4538091b33adbd25fafdb8a1468b959697988360019493106113f3575b5050811b019055611389565b85015160001960f88460031b161c1916905538806113e7565b858a015183556020998a0199600190930192016113ae565b60405162461bcd60e51b815260206004820152601f60248201527f6167656e7457616c6c6574206973206e6f7420736574207468697320776179006044820152606490fdfea164736f6c6343000825000a",
}

// IdentityRegistry is an auto generated Go binding around an Ethereum contract.
type IdentityRegistry struct {
	abi abi.ABI
}

// GetABI returns the ABI associated with this contract binding.
func (c *IdentityRegistry) GetABI() abi.ABI {
	return c.abi
}

// NewIdentityRegistry creates a new instance of IdentityRegistry.
func NewIdentityRegistry() *IdentityRegistry {
	parsed, err := IdentityRegistryMetaData.ParseABI()
	if err != nil {
		panic(errors.New("invalid ABI: " + err.Error()))
	}
	return &IdentityRegistry{abi: *parsed}
}

// Instance creates a wrapper for a deployed contract instance at the given address.
// Use this to create the instance object passed to abigen v2 library functions Call, Transact, etc.
func (c *IdentityRegistry) Instance(backend bind.ContractBackend, addr common.Address) *bind.BoundContract {
	return bind.NewBoundContract(addr, c.abi, backend, backend, backend)
}

// PackApprove is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x095ea7b3.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function approve(address to, uint256 tokenId) returns()
func (identityRegistry *IdentityRegistry) PackApprove(to common.Address, tokenId *big.Int) []byte {
	enc, err := identityRegistry.abi.Pack("approve", to, tokenId)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackApprove is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x095ea7b3.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function approve(address to, uint256 tokenId) returns()
func (identityRegistry *IdentityRegistry) TryPackApprove(to common.Address, tokenId *big.Int) ([]byte, error) {
	return identityRegistry.abi.Pack("approve", to, tokenId)
}

// PackBalanceOf is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x70a08231.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function balanceOf(address owner) view returns(uint256)
func (identityRegistry *IdentityRegistry) PackBalanceOf(owner common.Address) []byte {
	enc, err := identityRegistry.abi.Pack("balanceOf", owner)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackBalanceOf is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x70a08231.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function balanceOf(address owner) view returns(uint256)
func (identityRegistry *IdentityRegistry) TryPackBalanceOf(owner common.Address) ([]byte, error) {
	return identityRegistry.abi.Pack("balanceOf", owner)
}

// UnpackBalanceOf is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x70a08231.
//
// Solidity: function balanceOf(address owner) view returns(uint256)
func (identityRegistry *IdentityRegistry) UnpackBalanceOf(data []byte) (*big.Int, error) {
	out, err := identityRegistry.abi.Unpack("balanceOf", data)
	if err != nil {
		return new(big.Int), err
	}
	out0 := abi.ConvertType(out[0], new(big.Int)).(*big.Int)
	return out0, nil
}

// PackGetAgentWallet is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x00339509.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function getAgentWallet(uint256 agentId) view returns(address)
func (identityRegistry *IdentityRegistry) PackGetAgentWallet(agentId *big.Int) []byte {
	enc, err := identityRegistry.abi.Pack("getAgentWallet", agentId)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackGetAgentWallet is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x00339509.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function getAgentWallet(uint256 agentId) view returns(address)
func (identityRegistry *IdentityRegistry) TryPackGetAgentWallet(agentId *big.Int) ([]byte, error) {
	return identityRegistry.abi.Pack("getAgentWallet", agentId)
}

// UnpackGetAgentWallet is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x00339509.
//
// Solidity: function getAgentWallet(uint256 agentId) view returns(address)
func (identityRegistry *IdentityRegistry) UnpackGetAgentWallet(data []byte) (common.Address, error) {
	out, err := identityRegistry.abi.Unpack("getAgentWallet", data)
	if err != nil {
		return *new(common.Address), err
	}
	out0 := *abi.ConvertType(out[0], new(common.Address)).(*common.Address)
	return out0, nil
}

// PackGetApproved is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x081812fc.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function getApproved(uint256 tokenId) view returns(address)
func (identityRegistry *IdentityRegistry) PackGetApproved(tokenId *big.Int) []byte {
	enc, err := identityRegistry.abi.Pack("getApproved", tokenId)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackGetApproved is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x081812fc.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function getApproved(uint256 tokenId) view returns(address)
func (identityRegistry *IdentityRegistry) TryPackGetApproved(tokenId *big.Int) ([]byte, error) {
	return identityRegistry.abi.Pack("getApproved", tokenId)
}

// UnpackGetApproved is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x081812fc.
//
// Solidity: function getApproved(uint256 tokenId) view returns(address)
func (identityRegistry *IdentityRegistry) UnpackGetApproved(data []byte) (common.Address, error) {
	out, err := identityRegistry.abi.Unpack("getApproved", data)
	if err != nil {
		return *new(common.Address), err
	}
	out0 := *abi.ConvertType(out[0], new(common.Address)).(*common.Address)
	return out0, nil
}

// PackGetMetadata is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xcb4799f2.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function getMetadata(uint256 agentId, string metadataKey) view returns(bytes)
func (identityRegistry *IdentityRegistry) PackGetMetadata(agentId *big.Int, metadataKey string) []byte {
	enc, err := identityRegistry.abi.Pack("getMetadata", agentId, metadataKey)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackGetMetadata is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xcb4799f2.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function getMetadata(uint256 agentId, string metadataKey) view returns(bytes)
func (identityRegistry *IdentityRegistry) TryPackGetMetadata(agentId *big.Int, metadataKey string) ([]byte, error) {
	return identityRegistry.abi.Pack("getMetadata", agentId, metadataKey)
}

// UnpackGetMetadata is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0xcb4799f2.
//
// Solidity: function getMetadata(uint256 agentId, string metadataKey) view returns(bytes)
func (identityRegistry *IdentityRegistry) UnpackGetMetadata(data []byte) ([]byte, error) {
	out, err := identityRegistry.abi.Unpack("getMetadata", data)
	if err != nil {
		return *new([]byte), err
	}
	out0 := *abi.ConvertType(out[0], new([]byte)).(*[]byte)
	return out0, nil
}

// PackGetVersion is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x0d8e6e2c.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function getVersion() pure returns(string)
func (identityRegistry *IdentityRegistry) PackGetVersion() []byte {
	enc, err := identityRegistry.abi.Pack("getVersion")
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
func (identityRegistry *IdentityRegistry) TryPackGetVersion() ([]byte, error) {
	return identityRegistry.abi.Pack("getVersion")
}

// UnpackGetVersion is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x0d8e6e2c.
//
// Solidity: function getVersion() pure returns(string)
func (identityRegistry *IdentityRegistry) UnpackGetVersion(data []byte) (string, error) {
	out, err := identityRegistry.abi.Unpack("getVersion", data)
	if err != nil {
		return *new(string), err
	}
	out0 := *abi.ConvertType(out[0], new(string)).(*string)
	return out0, nil
}

// PackInitialize is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x8129fc1c.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function initialize() returns()
func (identityRegistry *IdentityRegistry) PackInitialize() []byte {
	enc, err := identityRegistry.abi.Pack("initialize")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackInitialize is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x8129fc1c.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function initialize() returns()
func (identityRegistry *IdentityRegistry) TryPackInitialize() ([]byte, error) {
	return identityRegistry.abi.Pack("initialize")
}

// PackIsApprovedForAll is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xe985e9c5.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function isApprovedForAll(address owner, address operator) view returns(bool)
func (identityRegistry *IdentityRegistry) PackIsApprovedForAll(owner common.Address, operator common.Address) []byte {
	enc, err := identityRegistry.abi.Pack("isApprovedForAll", owner, operator)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackIsApprovedForAll is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xe985e9c5.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function isApprovedForAll(address owner, address operator) view returns(bool)
func (identityRegistry *IdentityRegistry) TryPackIsApprovedForAll(owner common.Address, operator common.Address) ([]byte, error) {
	return identityRegistry.abi.Pack("isApprovedForAll", owner, operator)
}

// UnpackIsApprovedForAll is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0xe985e9c5.
//
// Solidity: function isApprovedForAll(address owner, address operator) view returns(bool)
func (identityRegistry *IdentityRegistry) UnpackIsApprovedForAll(data []byte) (bool, error) {
	out, err := identityRegistry.abi.Unpack("isApprovedForAll", data)
	if err != nil {
		return *new(bool), err
	}
	out0 := *abi.ConvertType(out[0], new(bool)).(*bool)
	return out0, nil
}

// PackName is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x06fdde03.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function name() view returns(string)
func (identityRegistry *IdentityRegistry) PackName() []byte {
	enc, err := identityRegistry.abi.Pack("name")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackName is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x06fdde03.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function name() view returns(string)
func (identityRegistry *IdentityRegistry) TryPackName() ([]byte, error) {
	return identityRegistry.abi.Pack("name")
}

// UnpackName is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x06fdde03.
//
// Solidity: function name() view returns(string)
func (identityRegistry *IdentityRegistry) UnpackName(data []byte) (string, error) {
	out, err := identityRegistry.abi.Unpack("name", data)
	if err != nil {
		return *new(string), err
	}
	out0 := *abi.ConvertType(out[0], new(string)).(*string)
	return out0, nil
}

// PackOwnerOf is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x6352211e.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function ownerOf(uint256 tokenId) view returns(address)
func (identityRegistry *IdentityRegistry) PackOwnerOf(tokenId *big.Int) []byte {
	enc, err := identityRegistry.abi.Pack("ownerOf", tokenId)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackOwnerOf is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x6352211e.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function ownerOf(uint256 tokenId) view returns(address)
func (identityRegistry *IdentityRegistry) TryPackOwnerOf(tokenId *big.Int) ([]byte, error) {
	return identityRegistry.abi.Pack("ownerOf", tokenId)
}

// UnpackOwnerOf is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x6352211e.
//
// Solidity: function ownerOf(uint256 tokenId) view returns(address)
func (identityRegistry *IdentityRegistry) UnpackOwnerOf(data []byte) (common.Address, error) {
	out, err := identityRegistry.abi.Unpack("ownerOf", data)
	if err != nil {
		return *new(common.Address), err
	}
	out0 := *abi.ConvertType(out[0], new(common.Address)).(*common.Address)
	return out0, nil
}

// PackRegister is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x1aa3a008.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function register() returns(uint256 agentId)
func (identityRegistry *IdentityRegistry) PackRegister() []byte {
	enc, err := identityRegistry.abi.Pack("register")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackRegister is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x1aa3a008.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function register() returns(uint256 agentId)
func (identityRegistry *IdentityRegistry) TryPackRegister() ([]byte, error) {
	return identityRegistry.abi.Pack("register")
}

// UnpackRegister is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x1aa3a008.
//
// Solidity: function register() returns(uint256 agentId)
func (identityRegistry *IdentityRegistry) UnpackRegister(data []byte) (*big.Int, error) {
	out, err := identityRegistry.abi.Unpack("register", data)
	if err != nil {
		return new(big.Int), err
	}
	out0 := abi.ConvertType(out[0], new(big.Int)).(*big.Int)
	return out0, nil
}

// PackRegister0 is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x8ea42286.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function register(string agentURI, (string,bytes)[] metadata) returns(uint256 agentId)
func (identityRegistry *IdentityRegistry) PackRegister0(agentURI string, metadata []IdentityRegistryMetadataEntry) []byte {
	enc, err := identityRegistry.abi.Pack("register0", agentURI, metadata)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackRegister0 is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x8ea42286.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function register(string agentURI, (string,bytes)[] metadata) returns(uint256 agentId)
func (identityRegistry *IdentityRegistry) TryPackRegister0(agentURI string, metadata []IdentityRegistryMetadataEntry) ([]byte, error) {
	return identityRegistry.abi.Pack("register0", agentURI, metadata)
}

// UnpackRegister0 is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x8ea42286.
//
// Solidity: function register(string agentURI, (string,bytes)[] metadata) returns(uint256 agentId)
func (identityRegistry *IdentityRegistry) UnpackRegister0(data []byte) (*big.Int, error) {
	out, err := identityRegistry.abi.Unpack("register0", data)
	if err != nil {
		return new(big.Int), err
	}
	out0 := abi.ConvertType(out[0], new(big.Int)).(*big.Int)
	return out0, nil
}

// PackRegister1 is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xf2c298be.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function register(string agentURI) returns(uint256 agentId)
func (identityRegistry *IdentityRegistry) PackRegister1(agentURI string) []byte {
	enc, err := identityRegistry.abi.Pack("register1", agentURI)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackRegister1 is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xf2c298be.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function register(string agentURI) returns(uint256 agentId)
func (identityRegistry *IdentityRegistry) TryPackRegister1(agentURI string) ([]byte, error) {
	return identityRegistry.abi.Pack("register1", agentURI)
}

// UnpackRegister1 is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0xf2c298be.
//
// Solidity: function register(string agentURI) returns(uint256 agentId)
func (identityRegistry *IdentityRegistry) UnpackRegister1(data []byte) (*big.Int, error) {
	out, err := identityRegistry.abi.Unpack("register1", data)
	if err != nil {
		return new(big.Int), err
	}
	out0 := abi.ConvertType(out[0], new(big.Int)).(*big.Int)
	return out0, nil
}

// PackSetAgentURI is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x0af28bd3.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function setAgentURI(uint256 agentId, string newURI) returns()
func (identityRegistry *IdentityRegistry) PackSetAgentURI(agentId *big.Int, newURI string) []byte {
	enc, err := identityRegistry.abi.Pack("setAgentURI", agentId, newURI)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackSetAgentURI is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x0af28bd3.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function setAgentURI(uint256 agentId, string newURI) returns()
func (identityRegistry *IdentityRegistry) TryPackSetAgentURI(agentId *big.Int, newURI string) ([]byte, error) {
	return identityRegistry.abi.Pack("setAgentURI", agentId, newURI)
}

// PackSetApprovalForAll is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xa22cb465.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function setApprovalForAll(address operator, bool approved) returns()
func (identityRegistry *IdentityRegistry) PackSetApprovalForAll(operator common.Address, approved bool) []byte {
	enc, err := identityRegistry.abi.Pack("setApprovalForAll", operator, approved)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackSetApprovalForAll is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xa22cb465.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function setApprovalForAll(address operator, bool approved) returns()
func (identityRegistry *IdentityRegistry) TryPackSetApprovalForAll(operator common.Address, approved bool) ([]byte, error) {
	return identityRegistry.abi.Pack("setApprovalForAll", operator, approved)
}

// PackSetMetadata is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x466648da.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function setMetadata(uint256 agentId, string metadataKey, bytes metadataValue) returns()
func (identityRegistry *IdentityRegistry) PackSetMetadata(agentId *big.Int, metadataKey string, metadataValue []byte) []byte {
	enc, err := identityRegistry.abi.Pack("setMetadata", agentId, metadataKey, metadataValue)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackSetMetadata is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x466648da.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function setMetadata(uint256 agentId, string metadataKey, bytes metadataValue) returns()
func (identityRegistry *IdentityRegistry) TryPackSetMetadata(agentId *big.Int, metadataKey string, metadataValue []byte) ([]byte, error) {
	return identityRegistry.abi.Pack("setMetadata", agentId, metadataKey, metadataValue)
}

// PackSymbol is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x95d89b41.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function symbol() view returns(string)
func (identityRegistry *IdentityRegistry) PackSymbol() []byte {
	enc, err := identityRegistry.abi.Pack("symbol")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackSymbol is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x95d89b41.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function symbol() view returns(string)
func (identityRegistry *IdentityRegistry) TryPackSymbol() ([]byte, error) {
	return identityRegistry.abi.Pack("symbol")
}

// UnpackSymbol is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x95d89b41.
//
// Solidity: function symbol() view returns(string)
func (identityRegistry *IdentityRegistry) UnpackSymbol(data []byte) (string, error) {
	out, err := identityRegistry.abi.Unpack("symbol", data)
	if err != nil {
		return *new(string), err
	}
	out0 := *abi.ConvertType(out[0], new(string)).(*string)
	return out0, nil
}

// PackTokenURI is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xc87b56dd.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function tokenURI(uint256 tokenId) view returns(string)
func (identityRegistry *IdentityRegistry) PackTokenURI(tokenId *big.Int) []byte {
	enc, err := identityRegistry.abi.Pack("tokenURI", tokenId)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackTokenURI is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xc87b56dd.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function tokenURI(uint256 tokenId) view returns(string)
func (identityRegistry *IdentityRegistry) TryPackTokenURI(tokenId *big.Int) ([]byte, error) {
	return identityRegistry.abi.Pack("tokenURI", tokenId)
}

// UnpackTokenURI is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0xc87b56dd.
//
// Solidity: function tokenURI(uint256 tokenId) view returns(string)
func (identityRegistry *IdentityRegistry) UnpackTokenURI(data []byte) (string, error) {
	out, err := identityRegistry.abi.Unpack("tokenURI", data)
	if err != nil {
		return *new(string), err
	}
	out0 := *abi.ConvertType(out[0], new(string)).(*string)
	return out0, nil
}

// PackTransferFrom is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x23b872dd.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function transferFrom(address from, address to, uint256 tokenId) returns()
func (identityRegistry *IdentityRegistry) PackTransferFrom(from common.Address, to common.Address, tokenId *big.Int) []byte {
	enc, err := identityRegistry.abi.Pack("transferFrom", from, to, tokenId)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackTransferFrom is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x23b872dd.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function transferFrom(address from, address to, uint256 tokenId) returns()
func (identityRegistry *IdentityRegistry) TryPackTransferFrom(from common.Address, to common.Address, tokenId *big.Int) ([]byte, error) {
	return identityRegistry.abi.Pack("transferFrom", from, to, tokenId)
}

// IdentityRegistryApproval represents a Approval event raised by the IdentityRegistry contract.
type IdentityRegistryApproval struct {
	Owner    common.Address
	Approved common.Address
	TokenId  *big.Int
	Raw      *types.Log // Blockchain specific contextual infos
}

const IdentityRegistryApprovalEventName = "Approval"

// ContractEventName returns the user-defined event name.
func (IdentityRegistryApproval) ContractEventName() string {
	return IdentityRegistryApprovalEventName
}

// UnpackApprovalEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event Approval(address indexed owner, address indexed approved, uint256 indexed tokenId)
func (identityRegistry *IdentityRegistry) UnpackApprovalEvent(log *types.Log) (*IdentityRegistryApproval, error) {
	event := "Approval"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != identityRegistry.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(IdentityRegistryApproval)
	if len(log.Data) > 0 {
		if err := identityRegistry.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range identityRegistry.abi.Events[event].Inputs {
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

// IdentityRegistryApprovalForAll represents a ApprovalForAll event raised by the IdentityRegistry contract.
type IdentityRegistryApprovalForAll struct {
	Owner    common.Address
	Operator common.Address
	Approved bool
	Raw      *types.Log // Blockchain specific contextual infos
}

const IdentityRegistryApprovalForAllEventName = "ApprovalForAll"

// ContractEventName returns the user-defined event name.
func (IdentityRegistryApprovalForAll) ContractEventName() string {
	return IdentityRegistryApprovalForAllEventName
}

// UnpackApprovalForAllEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event ApprovalForAll(address indexed owner, address indexed operator, bool approved)
func (identityRegistry *IdentityRegistry) UnpackApprovalForAllEvent(log *types.Log) (*IdentityRegistryApprovalForAll, error) {
	event := "ApprovalForAll"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != identityRegistry.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(IdentityRegistryApprovalForAll)
	if len(log.Data) > 0 {
		if err := identityRegistry.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range identityRegistry.abi.Events[event].Inputs {
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

// IdentityRegistryInitialized represents a Initialized event raised by the IdentityRegistry contract.
type IdentityRegistryInitialized struct {
	Version uint64
	Raw     *types.Log // Blockchain specific contextual infos
}

const IdentityRegistryInitializedEventName = "Initialized"

// ContractEventName returns the user-defined event name.
func (IdentityRegistryInitialized) ContractEventName() string {
	return IdentityRegistryInitializedEventName
}

// UnpackInitializedEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event Initialized(uint64 version)
func (identityRegistry *IdentityRegistry) UnpackInitializedEvent(log *types.Log) (*IdentityRegistryInitialized, error) {
	event := "Initialized"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != identityRegistry.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(IdentityRegistryInitialized)
	if len(log.Data) > 0 {
		if err := identityRegistry.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range identityRegistry.abi.Events[event].Inputs {
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

// IdentityRegistryMetadataSet represents a MetadataSet event raised by the IdentityRegistry contract.
type IdentityRegistryMetadataSet struct {
	AgentId            *big.Int
	IndexedMetadataKey common.Hash
	MetadataKey        string
	MetadataValue      []byte
	Raw                *types.Log // Blockchain specific contextual infos
}

const IdentityRegistryMetadataSetEventName = "MetadataSet"

// ContractEventName returns the user-defined event name.
func (IdentityRegistryMetadataSet) ContractEventName() string {
	return IdentityRegistryMetadataSetEventName
}

// UnpackMetadataSetEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event MetadataSet(uint256 indexed agentId, string indexed indexedMetadataKey, string metadataKey, bytes metadataValue)
func (identityRegistry *IdentityRegistry) UnpackMetadataSetEvent(log *types.Log) (*IdentityRegistryMetadataSet, error) {
	event := "MetadataSet"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != identityRegistry.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(IdentityRegistryMetadataSet)
	if len(log.Data) > 0 {
		if err := identityRegistry.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range identityRegistry.abi.Events[event].Inputs {
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

// IdentityRegistryMetadataUpdate represents a MetadataUpdate event raised by the IdentityRegistry contract.
type IdentityRegistryMetadataUpdate struct {
	TokenId *big.Int
	Raw     *types.Log // Blockchain specific contextual infos
}

const IdentityRegistryMetadataUpdateEventName = "MetadataUpdate"

// ContractEventName returns the user-defined event name.
func (IdentityRegistryMetadataUpdate) ContractEventName() string {
	return IdentityRegistryMetadataUpdateEventName
}

// UnpackMetadataUpdateEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event MetadataUpdate(uint256 _tokenId)
func (identityRegistry *IdentityRegistry) UnpackMetadataUpdateEvent(log *types.Log) (*IdentityRegistryMetadataUpdate, error) {
	event := "MetadataUpdate"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != identityRegistry.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(IdentityRegistryMetadataUpdate)
	if len(log.Data) > 0 {
		if err := identityRegistry.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range identityRegistry.abi.Events[event].Inputs {
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

// IdentityRegistryRegistered represents a Registered event raised by the IdentityRegistry contract.
type IdentityRegistryRegistered struct {
	AgentId  *big.Int
	AgentURI string
	Owner    common.Address
	Raw      *types.Log // Blockchain specific contextual infos
}

const IdentityRegistryRegisteredEventName = "Registered"

// ContractEventName returns the user-defined event name.
func (IdentityRegistryRegistered) ContractEventName() string {
	return IdentityRegistryRegisteredEventName
}

// UnpackRegisteredEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event Registered(uint256 indexed agentId, string agentURI, address indexed owner)
func (identityRegistry *IdentityRegistry) UnpackRegisteredEvent(log *types.Log) (*IdentityRegistryRegistered, error) {
	event := "Registered"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != identityRegistry.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(IdentityRegistryRegistered)
	if len(log.Data) > 0 {
		if err := identityRegistry.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range identityRegistry.abi.Events[event].Inputs {
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

// IdentityRegistryTransfer represents a Transfer event raised by the IdentityRegistry contract.
type IdentityRegistryTransfer struct {
	From    common.Address
	To      common.Address
	TokenId *big.Int
	Raw     *types.Log // Blockchain specific contextual infos
}

const IdentityRegistryTransferEventName = "Transfer"

// ContractEventName returns the user-defined event name.
func (IdentityRegistryTransfer) ContractEventName() string {
	return IdentityRegistryTransferEventName
}

// UnpackTransferEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event Transfer(address indexed from, address indexed to, uint256 indexed tokenId)
func (identityRegistry *IdentityRegistry) UnpackTransferEvent(log *types.Log) (*IdentityRegistryTransfer, error) {
	event := "Transfer"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != identityRegistry.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(IdentityRegistryTransfer)
	if len(log.Data) > 0 {
		if err := identityRegistry.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range identityRegistry.abi.Events[event].Inputs {
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

// IdentityRegistryURIUpdated represents a URIUpdated event raised by the IdentityRegistry contract.
type IdentityRegistryURIUpdated struct {
	AgentId   *big.Int
	NewURI    string
	UpdatedBy common.Address
	Raw       *types.Log // Blockchain specific contextual infos
}

const IdentityRegistryURIUpdatedEventName = "URIUpdated"

// ContractEventName returns the user-defined event name.
func (IdentityRegistryURIUpdated) ContractEventName() string {
	return IdentityRegistryURIUpdatedEventName
}

// UnpackURIUpdatedEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event URIUpdated(uint256 indexed agentId, string newURI, address indexed updatedBy)
func (identityRegistry *IdentityRegistry) UnpackURIUpdatedEvent(log *types.Log) (*IdentityRegistryURIUpdated, error) {
	event := "URIUpdated"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != identityRegistry.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(IdentityRegistryURIUpdated)
	if len(log.Data) > 0 {
		if err := identityRegistry.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range identityRegistry.abi.Events[event].Inputs {
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
func (identityRegistry *IdentityRegistry) UnpackError(raw []byte) (any, error) {
	if bytes.Equal(raw[:4], identityRegistry.abi.Errors["ERC721IncorrectOwner"].ID.Bytes()[:4]) {
		return identityRegistry.UnpackERC721IncorrectOwnerError(raw[4:])
	}
	if bytes.Equal(raw[:4], identityRegistry.abi.Errors["ERC721InsufficientApproval"].ID.Bytes()[:4]) {
		return identityRegistry.UnpackERC721InsufficientApprovalError(raw[4:])
	}
	if bytes.Equal(raw[:4], identityRegistry.abi.Errors["ERC721InvalidApprover"].ID.Bytes()[:4]) {
		return identityRegistry.UnpackERC721InvalidApproverError(raw[4:])
	}
	if bytes.Equal(raw[:4], identityRegistry.abi.Errors["ERC721InvalidOperator"].ID.Bytes()[:4]) {
		return identityRegistry.UnpackERC721InvalidOperatorError(raw[4:])
	}
	if bytes.Equal(raw[:4], identityRegistry.abi.Errors["ERC721InvalidOwner"].ID.Bytes()[:4]) {
		return identityRegistry.UnpackERC721InvalidOwnerError(raw[4:])
	}
	if bytes.Equal(raw[:4], identityRegistry.abi.Errors["ERC721InvalidReceiver"].ID.Bytes()[:4]) {
		return identityRegistry.UnpackERC721InvalidReceiverError(raw[4:])
	}
	if bytes.Equal(raw[:4], identityRegistry.abi.Errors["ERC721NonexistentToken"].ID.Bytes()[:4]) {
		return identityRegistry.UnpackERC721NonexistentTokenError(raw[4:])
	}
	if bytes.Equal(raw[:4], identityRegistry.abi.Errors["InvalidInitialization"].ID.Bytes()[:4]) {
		return identityRegistry.UnpackInvalidInitializationError(raw[4:])
	}
	return nil, errors.New("Unknown error")
}

// IdentityRegistryERC721IncorrectOwner represents a ERC721IncorrectOwner error raised by the IdentityRegistry contract.
type IdentityRegistryERC721IncorrectOwner struct {
	Sender  common.Address
	TokenId *big.Int
	Owner   common.Address
}

// ErrorID returns the hash of canonical representation of the error's signature.
//
// Solidity: error ERC721IncorrectOwner(address sender, uint256 tokenId, address owner)
func IdentityRegistryERC721IncorrectOwnerErrorID() common.Hash {
	return common.HexToHash("0x64283d7b313c8117c125f736876fa2b4e90ea3831a4716dfdb87d2f540e26289")
}

// UnpackERC721IncorrectOwnerError is the Go binding used to decode the provided
// error data into the corresponding Go error struct.
//
// Solidity: error ERC721IncorrectOwner(address sender, uint256 tokenId, address owner)
func (identityRegistry *IdentityRegistry) UnpackERC721IncorrectOwnerError(raw []byte) (*IdentityRegistryERC721IncorrectOwner, error) {
	out := new(IdentityRegistryERC721IncorrectOwner)
	if err := identityRegistry.abi.UnpackIntoInterface(out, "ERC721IncorrectOwner", raw); err != nil {
		return nil, err
	}
	return out, nil
}

// IdentityRegistryERC721InsufficientApproval represents a ERC721InsufficientApproval error raised by the IdentityRegistry contract.
type IdentityRegistryERC721InsufficientApproval struct {
	Operator common.Address
	TokenId  *big.Int
}

// ErrorID returns the hash of canonical representation of the error's signature.
//
// Solidity: error ERC721InsufficientApproval(address operator, uint256 tokenId)
func IdentityRegistryERC721InsufficientApprovalErrorID() common.Hash {
	return common.HexToHash("0x177e802f6f313bc89797ecace66d6d29ab4719cbaaacbb87367264048b1eb861")
}

// UnpackERC721InsufficientApprovalError is the Go binding used to decode the provided
// error data into the corresponding Go error struct.
//
// Solidity: error ERC721InsufficientApproval(address operator, uint256 tokenId)
func (identityRegistry *IdentityRegistry) UnpackERC721InsufficientApprovalError(raw []byte) (*IdentityRegistryERC721InsufficientApproval, error) {
	out := new(IdentityRegistryERC721InsufficientApproval)
	if err := identityRegistry.abi.UnpackIntoInterface(out, "ERC721InsufficientApproval", raw); err != nil {
		return nil, err
	}
	return out, nil
}

// IdentityRegistryERC721InvalidApprover represents a ERC721InvalidApprover error raised by the IdentityRegistry contract.
type IdentityRegistryERC721InvalidApprover struct {
	Approver common.Address
}

// ErrorID returns the hash of canonical representation of the error's signature.
//
// Solidity: error ERC721InvalidApprover(address approver)
func IdentityRegistryERC721InvalidApproverErrorID() common.Hash {
	return common.HexToHash("0xa9fbf51f86b8e03595d59dc726bb10c329bb24f62589be276d8dd193ca0b69ea")
}

// UnpackERC721InvalidApproverError is the Go binding used to decode the provided
// error data into the corresponding Go error struct.
//
// Solidity: error ERC721InvalidApprover(address approver)
func (identityRegistry *IdentityRegistry) UnpackERC721InvalidApproverError(raw []byte) (*IdentityRegistryERC721InvalidApprover, error) {
	out := new(IdentityRegistryERC721InvalidApprover)
	if err := identityRegistry.abi.UnpackIntoInterface(out, "ERC721InvalidApprover", raw); err != nil {
		return nil, err
	}
	return out, nil
}

// IdentityRegistryERC721InvalidOperator represents a ERC721InvalidOperator error raised by the IdentityRegistry contract.
type IdentityRegistryERC721InvalidOperator struct {
	Operator common.Address
}

// ErrorID returns the hash of canonical representation of the error's signature.
//
// Solidity: error ERC721InvalidOperator(address operator)
func IdentityRegistryERC721InvalidOperatorErrorID() common.Hash {
	return common.HexToHash("0x5b08ba185e8f577075361f3a3555a6580a227ce22734dcc979c1aeadf894658b")
}

// UnpackERC721InvalidOperatorError is the Go binding used to decode the provided
// error data into the corresponding Go error struct.
//
// Solidity: error ERC721InvalidOperator(address operator)
func (identityRegistry *IdentityRegistry) UnpackERC721InvalidOperatorError(raw []byte) (*IdentityRegistryERC721InvalidOperator, error) {
	out := new(IdentityRegistryERC721InvalidOperator)
	if err := identityRegistry.abi.UnpackIntoInterface(out, "ERC721InvalidOperator", raw); err != nil {
		return nil, err
	}
	return out, nil
}

// IdentityRegistryERC721InvalidOwner represents a ERC721InvalidOwner error raised by the IdentityRegistry contract.
type IdentityRegistryERC721InvalidOwner struct {
	Owner common.Address
}

// ErrorID returns the hash of canonical representation of the error's signature.
//
// Solidity: error ERC721InvalidOwner(address owner)
func IdentityRegistryERC721InvalidOwnerErrorID() common.Hash {
	return common.HexToHash("0x89c62b6479af2e623826dcc39c5133061d35b66d72de92833401dd2fd6567480")
}

// UnpackERC721InvalidOwnerError is the Go binding used to decode the provided
// error data into the corresponding Go error struct.
//
// Solidity: error ERC721InvalidOwner(address owner)
func (identityRegistry *IdentityRegistry) UnpackERC721InvalidOwnerError(raw []byte) (*IdentityRegistryERC721InvalidOwner, error) {
	out := new(IdentityRegistryERC721InvalidOwner)
	if err := identityRegistry.abi.UnpackIntoInterface(out, "ERC721InvalidOwner", raw); err != nil {
		return nil, err
	}
	return out, nil
}

// IdentityRegistryERC721InvalidReceiver represents a ERC721InvalidReceiver error raised by the IdentityRegistry contract.
type IdentityRegistryERC721InvalidReceiver struct {
	Receiver common.Address
}

// ErrorID returns the hash of canonical representation of the error's signature.
//
// Solidity: error ERC721InvalidReceiver(address receiver)
func IdentityRegistryERC721InvalidReceiverErrorID() common.Hash {
	return common.HexToHash("0x64a0ae9278f805eaf991dcd18ca78756d280b7508b764ef1b255c55845c11df9")
}

// UnpackERC721InvalidReceiverError is the Go binding used to decode the provided
// error data into the corresponding Go error struct.
//
// Solidity: error ERC721InvalidReceiver(address receiver)
func (identityRegistry *IdentityRegistry) UnpackERC721InvalidReceiverError(raw []byte) (*IdentityRegistryERC721InvalidReceiver, error) {
	out := new(IdentityRegistryERC721InvalidReceiver)
	if err := identityRegistry.abi.UnpackIntoInterface(out, "ERC721InvalidReceiver", raw); err != nil {
		return nil, err
	}
	return out, nil
}

// IdentityRegistryERC721NonexistentToken represents a ERC721NonexistentToken error raised by the IdentityRegistry contract.
type IdentityRegistryERC721NonexistentToken struct {
	TokenId *big.Int
}

// ErrorID returns the hash of canonical representation of the error's signature.
//
// Solidity: error ERC721NonexistentToken(uint256 tokenId)
func IdentityRegistryERC721NonexistentTokenErrorID() common.Hash {
	return common.HexToHash("0x7e273289a3a9ef6670f06df7dca227856fc925e956db96980692764a8bc734d7")
}

// UnpackERC721NonexistentTokenError is the Go binding used to decode the provided
// error data into the corresponding Go error struct.
//
// Solidity: error ERC721NonexistentToken(uint256 tokenId)
func (identityRegistry *IdentityRegistry) UnpackERC721NonexistentTokenError(raw []byte) (*IdentityRegistryERC721NonexistentToken, error) {
	out := new(IdentityRegistryERC721NonexistentToken)
	if err := identityRegistry.abi.UnpackIntoInterface(out, "ERC721NonexistentToken", raw); err != nil {
		return nil, err
	}
	return out, nil
}

// IdentityRegistryInvalidInitialization represents a InvalidInitialization error raised by the IdentityRegistry contract.
type IdentityRegistryInvalidInitialization struct {
}

// ErrorID returns the hash of canonical representation of the error's signature.
//
// Solidity: error InvalidInitialization()
func IdentityRegistryInvalidInitializationErrorID() common.Hash {
	return common.HexToHash("0xf92ee8a957075833165f68c320933b1a1294aafc84ee6e0dd3fb178008f9aaf5")
}

// UnpackInvalidInitializationError is the Go binding used to decode the provided
// error data into the corresponding Go error struct.
//
// Solidity: error InvalidInitialization()
func (identityRegistry *IdentityRegistry) UnpackInvalidInitializationError(raw []byte) (*IdentityRegistryInvalidInitialization, error) {
	out := new(IdentityRegistryInvalidInitialization)
	if err := identityRegistry.abi.UnpackIntoInterface(out, "InvalidInitialization", raw); err != nil {
		return nil, err
	}
	return out, nil
}
