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

// ValidationRegistryMetaData contains all meta data concerning the ValidationRegistry contract.
var ValidationRegistryMetaData = bind.MetaData{
	ABI: "[{\"inputs\":[],\"name\":\"InvalidInitialization\",\"type\":\"error\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":false,\"internalType\":\"uint64\",\"name\":\"version\",\"type\":\"uint64\"}],\"name\":\"Initialized\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"address\",\"name\":\"validatorAddress\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"indexed\":false,\"internalType\":\"string\",\"name\":\"requestURI\",\"type\":\"string\"},{\"indexed\":true,\"internalType\":\"bytes32\",\"name\":\"requestHash\",\"type\":\"bytes32\"}],\"name\":\"ValidationRequest\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"address\",\"name\":\"validatorAddress\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"indexed\":true,\"internalType\":\"bytes32\",\"name\":\"requestHash\",\"type\":\"bytes32\"},{\"indexed\":false,\"internalType\":\"uint8\",\"name\":\"response\",\"type\":\"uint8\"},{\"indexed\":false,\"internalType\":\"string\",\"name\":\"responseURI\",\"type\":\"string\"},{\"indexed\":false,\"internalType\":\"bytes32\",\"name\":\"responseHash\",\"type\":\"bytes32\"},{\"indexed\":false,\"internalType\":\"string\",\"name\":\"tag\",\"type\":\"string\"}],\"name\":\"ValidationResponse\",\"type\":\"event\"},{\"inputs\":[],\"name\":\"getIdentityRegistry\",\"outputs\":[{\"internalType\":\"address\",\"name\":\"\",\"type\":\"address\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"bytes32\",\"name\":\"requestHash\",\"type\":\"bytes32\"}],\"name\":\"getValidationStatus\",\"outputs\":[{\"internalType\":\"address\",\"name\":\"validatorAddress\",\"type\":\"address\"},{\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"internalType\":\"uint8\",\"name\":\"response\",\"type\":\"uint8\"},{\"internalType\":\"bytes32\",\"name\":\"responseHash\",\"type\":\"bytes32\"},{\"internalType\":\"string\",\"name\":\"tag\",\"type\":\"string\"},{\"internalType\":\"uint256\",\"name\":\"lastUpdate\",\"type\":\"uint256\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"getVersion\",\"outputs\":[{\"internalType\":\"string\",\"name\":\"\",\"type\":\"string\"}],\"stateMutability\":\"pure\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"identityRegistry_\",\"type\":\"address\"}],\"name\":\"initialize\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"validatorAddress\",\"type\":\"address\"},{\"internalType\":\"uint256\",\"name\":\"agentId\",\"type\":\"uint256\"},{\"internalType\":\"string\",\"name\":\"requestURI\",\"type\":\"string\"},{\"internalType\":\"bytes32\",\"name\":\"requestHash\",\"type\":\"bytes32\"}],\"name\":\"validationRequest\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"bytes32\",\"name\":\"requestHash\",\"type\":\"bytes32\"},{\"internalType\":\"uint8\",\"name\":\"response\",\"type\":\"uint8\"},{\"internalType\":\"string\",\"name\":\"responseURI\",\"type\":\"string\"},{\"internalType\":\"bytes32\",\"name\":\"responseHash\",\"type\":\"bytes32\"},{\"internalType\":\"string\",\"name\":\"tag\",\"type\":\"string\"}],\"name\":\"validationResponse\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"}]",
	ID:  "ValidationRegistry",
	Bin: "0x60808060405234601557610a31908161001b8239f35b600080fdfe608080604052600436101561001357600080fd5b60003560e01c9081630d8e6e2c14610853575080633d659a961461057d578063aaf400c414610272578063bc4d861b14610249578063c4d66de81461017f5763ff2febfc1461006157600080fd5b3461017a57602036600319011261017a5761007d6004356109af565b60018060a01b0381541660018201549060ff60028401541660038401549060056004860195015491604051916000968054906100b882610954565b80865291600181169081156101535750600114610116575b50506100e48361010c959697980384610932565b604051968796875260208701526040860152606085015260c0608085015260c08401906108ad565b9060a08301520390f35b90975060005260206000206000905b88821061013d5750830160200196506100e4836100d0565b6001816020925483858901015201910190610125565b60ff191660208088019190915292151560051b860190920198506100e491508490506100d0565b600080fd5b3461017a57602036600319011261017a5761019861091c565b600054906001600160a01b038216610238576001600160a01b03169081156101fc576bffffffffffffffffffffffff60a01b16176000557fc7f505b2f371ae2175ee4913f4499e1f2633a7b5936321eed1cdaeb6115181d2602060405160018152a1005b60405162461bcd60e51b81526020600482015260146024820152736e6f206964656e7469747920726567697374727960601b6044820152606490fd5b63f92ee8a960e01b60005260046000fd5b3461017a57600036600319011261017a576000546040516001600160a01b039091168152602090f35b3461017a57608036600319011261017a5761028b61091c565b60243560443567ffffffffffffffff811161017a576102ae9036906004016108ee565b606435936001600160a01b0316918215610549576000546040516331a9108f60e11b8152600481018690526001600160a01b0390911690602081602481855afa9081156104a05760009161052a575b5060018060a01b0316908133149182156104ac575b508115610430575b50156103db57600085815260016020526040902080549092906001600160a01b03166103a1577f530436c3634a98e1e626b0898be2f1e9980cc1bd2a78c07a0aba52d0a48a505992846bffffffffffffffffffffffff60a01b82541617815585600182015560054291015561039c60405192839260208452602084019161098e565b0390a4005b60405162461bcd60e51b815260206004820152601260248201527174686520726571756573742065786973747360701b6044820152606490fd5b60405162461bcd60e51b815260206004820152602760248201527f6e656974686572206f776e6572206e6f72206f70657261746f72206f6620746860448201526619481859d95b9d60ca1b6064820152608490fd5b602491506020906040519283809263020604bf60e21b82528960048301525afa9081156104a057600091610471575b506001600160a01b031633148661031a565b610493915060203d602011610499575b61048b8183610932565b810190610a05565b8661045f565b503d610481565b6040513d6000823e3d90fd5b9091506040519063e985e9c560e01b82526004820152336024820152602081604481855afa9081156104a0576000916104e8575b509087610312565b6020813d602011610522575b8161050160209383610932565b8101031261051e575190811515820361051b5750876104e0565b80fd5b5080fd5b3d91506104f4565b610543915060203d6020116104995761048b8183610932565b876102fd565b60405162461bcd60e51b815260206004820152600c60248201526b3737903b30b634b230ba37b960a11b6044820152606490fd5b3461017a5760a036600319011261017a5760043560243560ff811680910361017a5760443567ffffffffffffffff811161017a576105bf9036906004016108ee565b6064929192359160843567ffffffffffffffff811161017a576105e69036906004016108ee565b6105f2879592956109af565b80546001600160a01b0316330361081a57606484116107df57600281018460ff198254161790558260038201556004810167ffffffffffffffff83116107c95761063c8154610954565b601f8111610773575b506000601f84116001146106e15760017fafddf629e874ccc3963b6a888c477bd464a6c8525024fc88759ea3b2326349ae97969593859361039c966106c1946000916106d6575b50600019600387901b1c191685841b1790555b426005820155015498604051968796875260806020880152608087019161098e565b9160408501528382036060850152339661098e565b90508b01358e61068c565b8181526020812090601f198516815b8a82821061075b5750509385936106c19360019361039c987fafddf629e874ccc3963b6a888c477bd464a6c8525024fc88759ea3b2326349ae9c9b9a9810610741575b50508285811b01905561069f565b8c0135600019600388901b60f8161c191690558d80610733565b600184956020939584930135815501940192016106f0565b8381111561064557816000526020600020601f850160051c90602086106107c0575b81601f9101920160051c039060005b8281106107b2575050610645565b6000828201556001016107a4565b60009150610795565b634e487b7160e01b600052604160045260246000fd5b60405162461bcd60e51b81526020600482015260136024820152720726573706f6e7365206265796f6e642031303606c1b6044820152606490fd5b60405162461bcd60e51b81526020600482015260116024820152703737ba103a3432903b30b634b230ba37b960791b6044820152606490fd5b3461017a57600036600319011261017a57604081019080821067ffffffffffffffff8311176107c9576108a99160405260058152640322e302e360dc1b60208201526040519182916020835260208301906108ad565b0390f35b919082519283825260005b8481106108d9575050826000602080949584010152601f8019910116010190565b806020809284010151828286010152016108b8565b9181601f8401121561017a5782359167ffffffffffffffff831161017a576020838186019501011161017a57565b600435906001600160a01b038216820361017a57565b90601f8019910116810190811067ffffffffffffffff8211176107c957604052565b90600182811c92168015610984575b602083101461096e57565b634e487b7160e01b600052602260045260246000fd5b91607f1691610963565b908060209392818452848401376000828201840152601f01601f1916010190565b600052600160205260406000209060018060a01b03825416156109ce57565b60405162461bcd60e51b815260206004820152600f60248201526e1b9bc81cdd58da081c995c5d595cdd608a1b6044820152606490fd5b9081602091031261017a57516001600160a01b038116810361017a579056fea164736f6c6343000825000a",
}

// ValidationRegistry is an auto generated Go binding around an Ethereum contract.
type ValidationRegistry struct {
	abi abi.ABI
}

// GetABI returns the ABI associated with this contract binding.
func (c *ValidationRegistry) GetABI() abi.ABI {
	return c.abi
}

// NewValidationRegistry creates a new instance of ValidationRegistry.
func NewValidationRegistry() *ValidationRegistry {
	parsed, err := ValidationRegistryMetaData.ParseABI()
	if err != nil {
		panic(errors.New("invalid ABI: " + err.Error()))
	}
	return &ValidationRegistry{abi: *parsed}
}

// Instance creates a wrapper for a deployed contract instance at the given address.
// Use this to create the instance object passed to abigen v2 library functions Call, Transact, etc.
func (c *ValidationRegistry) Instance(backend bind.ContractBackend, addr common.Address) *bind.BoundContract {
	return bind.NewBoundContract(addr, c.abi, backend, backend, backend)
}

// PackGetIdentityRegistry is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xbc4d861b.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function getIdentityRegistry() view returns(address)
func (validationRegistry *ValidationRegistry) PackGetIdentityRegistry() []byte {
	enc, err := validationRegistry.abi.Pack("getIdentityRegistry")
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
func (validationRegistry *ValidationRegistry) TryPackGetIdentityRegistry() ([]byte, error) {
	return validationRegistry.abi.Pack("getIdentityRegistry")
}

// UnpackGetIdentityRegistry is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0xbc4d861b.
//
// Solidity: function getIdentityRegistry() view returns(address)
func (validationRegistry *ValidationRegistry) UnpackGetIdentityRegistry(data []byte) (common.Address, error) {
	out, err := validationRegistry.abi.Unpack("getIdentityRegistry", data)
	if err != nil {
		return *new(common.Address), err
	}
	out0 := *abi.ConvertType(out[0], new(common.Address)).(*common.Address)
	return out0, nil
}

// PackGetValidationStatus is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xff2febfc.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function getValidationStatus(bytes32 requestHash) view returns(address validatorAddress, uint256 agentId, uint8 response, bytes32 responseHash, string tag, uint256 lastUpdate)
func (validationRegistry *ValidationRegistry) PackGetValidationStatus(requestHash [32]byte) []byte {
	enc, err := validationRegistry.abi.Pack("getValidationStatus", requestHash)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackGetValidationStatus is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xff2febfc.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function getValidationStatus(bytes32 requestHash) view returns(address validatorAddress, uint256 agentId, uint8 response, bytes32 responseHash, string tag, uint256 lastUpdate)
func (validationRegistry *ValidationRegistry) TryPackGetValidationStatus(requestHash [32]byte) ([]byte, error) {
	return validationRegistry.abi.Pack("getValidationStatus", requestHash)
}

// GetValidationStatusOutput serves as a container for the return parameters of contract
// method GetValidationStatus.
type GetValidationStatusOutput struct {
	ValidatorAddress common.Address
	AgentId          *big.Int
	Response         uint8
	ResponseHash     [32]byte
	Tag              string
	LastUpdate       *big.Int
}

// UnpackGetValidationStatus is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0xff2febfc.
//
// Solidity: function getValidationStatus(bytes32 requestHash) view returns(address validatorAddress, uint256 agentId, uint8 response, bytes32 responseHash, string tag, uint256 lastUpdate)
func (validationRegistry *ValidationRegistry) UnpackGetValidationStatus(data []byte) (GetValidationStatusOutput, error) {
	out, err := validationRegistry.abi.Unpack("getValidationStatus", data)
	outstruct := new(GetValidationStatusOutput)
	if err != nil {
		return *outstruct, err
	}
	outstruct.ValidatorAddress = *abi.ConvertType(out[0], new(common.Address)).(*common.Address)
	outstruct.AgentId = abi.ConvertType(out[1], new(big.Int)).(*big.Int)
	outstruct.Response = *abi.ConvertType(out[2], new(uint8)).(*uint8)
	outstruct.ResponseHash = *abi.ConvertType(out[3], new([32]byte)).(*[32]byte)
	outstruct.Tag = *abi.ConvertType(out[4], new(string)).(*string)
	outstruct.LastUpdate = abi.ConvertType(out[5], new(big.Int)).(*big.Int)
	return *outstruct, nil
}

// PackGetVersion is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x0d8e6e2c.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function getVersion() pure returns(string)
func (validationRegistry *ValidationRegistry) PackGetVersion() []byte {
	enc, err := validationRegistry.abi.Pack("getVersion")
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
func (validationRegistry *ValidationRegistry) TryPackGetVersion() ([]byte, error) {
	return validationRegistry.abi.Pack("getVersion")
}

// UnpackGetVersion is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x0d8e6e2c.
//
// Solidity: function getVersion() pure returns(string)
func (validationRegistry *ValidationRegistry) UnpackGetVersion(data []byte) (string, error) {
	out, err := validationRegistry.abi.Unpack("getVersion", data)
	if err != nil {
		return *new(string), err
	}
	out0 := *abi.ConvertType(out[0], new(string)).(*string)
	return out0, nil
}

// PackInitialize is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xc4d66de8.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function initialize(address identityRegistry_) returns()
func (validationRegistry *ValidationRegistry) PackInitialize(identityRegistry common.Address) []byte {
	enc, err := validationRegistry.abi.Pack("initialize", identityRegistry)
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
func (validationRegistry *ValidationRegistry) TryPackInitialize(identityRegistry common.Address) ([]byte, error) {
	return validationRegistry.abi.Pack("initialize", identityRegistry)
}

// PackValidationRequest is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xaaf400c4.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function validationRequest(address validatorAddress, uint256 agentId, string requestURI, bytes32 requestHash) returns()
func (validationRegistry *ValidationRegistry) PackValidationRequest(validatorAddress common.Address, agentId *big.Int, requestURI string, requestHash [32]byte) []byte {
	enc, err := validationRegistry.abi.Pack("validationRequest", validatorAddress, agentId, requestURI, requestHash)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackValidationRequest is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xaaf400c4.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function validationRequest(address validatorAddress, uint256 agentId, string requestURI, bytes32 requestHash) returns()
func (validationRegistry *ValidationRegistry) TryPackValidationRequest(validatorAddress common.Address, agentId *big.Int, requestURI string, requestHash [32]byte) ([]byte, error) {
	return validationRegistry.abi.Pack("validationRequest", validatorAddress, agentId, requestURI, requestHash)
}

// PackValidationResponse is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x3d659a96.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function validationResponse(bytes32 requestHash, uint8 response, string responseURI, bytes32 responseHash, string tag) returns()
func (validationRegistry *ValidationRegistry) PackValidationResponse(requestHash [32]byte, response uint8, responseURI string, responseHash [32]byte, tag string) []byte {
	enc, err := validationRegistry.abi.Pack("validationResponse", requestHash, response, responseURI, responseHash, tag)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackValidationResponse is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x3d659a96.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function validationResponse(bytes32 requestHash, uint8 response, string responseURI, bytes32 responseHash, string tag) returns()
func (validationRegistry *ValidationRegistry) TryPackValidationResponse(requestHash [32]byte, response uint8, responseURI string, responseHash [32]byte, tag string) ([]byte, error) {
	return validationRegistry.abi.Pack("validationResponse", requestHash, response, responseURI, responseHash, tag)
}

// ValidationRegistryInitialized represents a Initialized event raised by the ValidationRegistry contract.
type ValidationRegistryInitialized struct {
	Version uint64
	Raw     *types.Log // Blockchain specific contextual infos
}

const ValidationRegistryInitializedEventName = "Initialized"

// ContractEventName returns the user-defined event name.
func (ValidationRegistryInitialized) ContractEventName() string {
	return ValidationRegistryInitializedEventName
}

// UnpackInitializedEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event Initialized(uint64 version)
func (validationRegistry *ValidationRegistry) UnpackInitializedEvent(log *types.Log) (*ValidationRegistryInitialized, error) {
	event := "Initialized"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != validationRegistry.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(ValidationRegistryInitialized)
	if len(log.Data) > 0 {
		if err := validationRegistry.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range validationRegistry.abi.Events[event].Inputs {
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

// ValidationRegistryValidationRequest represents a ValidationRequest event raised by the ValidationRegistry contract.
type ValidationRegistryValidationRequest struct {
	ValidatorAddress common.Address
	AgentId          *big.Int
	RequestURI       string
	RequestHash      [32]byte
	Raw              *types.Log // Blockchain specific contextual infos
}

const ValidationRegistryValidationRequestEventName = "ValidationRequest"

// ContractEventName returns the user-defined event name.
func (ValidationRegistryValidationRequest) ContractEventName() string {
	return ValidationRegistryValidationRequestEventName
}

// UnpackValidationRequestEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event ValidationRequest(address indexed validatorAddress, uint256 indexed agentId, string requestURI, bytes32 indexed requestHash)
func (validationRegistry *ValidationRegistry) UnpackValidationRequestEvent(log *types.Log) (*ValidationRegistryValidationRequest, error) {
	event := "ValidationRequest"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != validationRegistry.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(ValidationRegistryValidationRequest)
	if len(log.Data) > 0 {
		if err := validationRegistry.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range validationRegistry.abi.Events[event].Inputs {
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

// ValidationRegistryValidationResponse represents a ValidationResponse event raised by the ValidationRegistry contract.
type ValidationRegistryValidationResponse struct {
	ValidatorAddress common.Address
	AgentId          *big.Int
	RequestHash      [32]byte
	Response         uint8
	ResponseURI      string
	ResponseHash     [32]byte
	Tag              string
	Raw              *types.Log // Blockchain specific contextual infos
}

const ValidationRegistryValidationResponseEventName = "ValidationResponse"

// ContractEventName returns the user-defined event name.
func (ValidationRegistryValidationResponse) ContractEventName() string {
	return ValidationRegistryValidationResponseEventName
}

// UnpackValidationResponseEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event ValidationResponse(address indexed validatorAddress, uint256 indexed agentId, bytes32 indexed requestHash, uint8 response, string responseURI, bytes32 responseHash, string tag)
func (validationRegistry *ValidationRegistry) UnpackValidationResponseEvent(log *types.Log) (*ValidationRegistryValidationResponse, error) {
	event := "ValidationResponse"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != validationRegistry.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(ValidationRegistryValidationResponse)
	if len(log.Data) > 0 {
		if err := validationRegistry.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range validationRegistry.abi.Events[event].Inputs {
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
func (validationRegistry *ValidationRegistry) UnpackError(raw []byte) (any, error) {
	if bytes.Equal(raw[:4], validationRegistry.abi.Errors["InvalidInitialization"].ID.Bytes()[:4]) {
		return validationRegistry.UnpackInvalidInitializationError(raw[4:])
	}
	return nil, errors.New("Unknown error")
}

// ValidationRegistryInvalidInitialization represents a InvalidInitialization error raised by the ValidationRegistry contract.
type ValidationRegistryInvalidInitialization struct {
}

// ErrorID returns the hash of canonical representation of the error's signature.
//
// Solidity: error InvalidInitialization()
func ValidationRegistryInvalidInitializationErrorID() common.Hash {
	return common.HexToHash("0xf92ee8a957075833165f68c320933b1a1294aafc84ee6e0dd3fb178008f9aaf5")
}

// UnpackInvalidInitializationError is the Go binding used to decode the provided
// error data into the corresponding Go error struct.
//
// Solidity: error InvalidInitialization()
func (validationRegistry *ValidationRegistry) UnpackInvalidInitializationError(raw []byte) (*ValidationRegistryInvalidInitialization, error) {
	out := new(ValidationRegistryInvalidInitialization)
	if err := validationRegistry.abi.UnpackIntoInterface(out, "InvalidInitialization", raw); err != nil {
		return nil, err
	}
	return out, nil
}
