package receiver

import (
	"strings"
	"testing"
)

// TestLargeNumbers checks that a number with a large exponent is refused before the validator calculates with it, which
// would panic or take long. A file may contain any number.
func TestLargeNumbers(t *testing.T) {
	t.Parallel()
	check := compileSchema(ToolFeedback)
	for _, number := range []string{"1e1000000", "-1E+999999999", "1e-1000000", "1" + strings.Repeat("0", 1000)} {
		for _, name := range []string{"feedbackIndex", "score", "chainId", "value", "unknown"} {
			_, err := decodeValue[Feedback](check, []byte(`{"`+name+`":`+number+`}`))
			if err == nil || !strings.Contains(err.Error(), "is too long") {
				t.Errorf("%.20s as %s: %v", number, name, err)
			}
		}
		_, err := decodeValue[Feedback](check, []byte(`{"fileContent":[`+number+`,{"a":`+number+`}]}`))
		if err == nil || !strings.Contains(err.Error(), "missing properties") {
			t.Errorf("%.20s in a file: %v", number, err)
		}
	}
}

// FuzzDecode checks that decoded arguments have the invariants that handlers rely on, whatever a stranger sends.
func FuzzDecode(f *testing.F) {
	check := compileSchema(ToolFeedback)
	f.Add([]byte(`{"value":"95","valueDecimals":0,"tag1":"","tag2":"","clientAddress":"0x00000000000000000000000000000000000000AA",
		"feedbackIndex":1,"fileUri":null,"fileHash":null,"fileContent":{"text":1e400},"fileVerification":"raw","fileSource":null,
		"blockNumber":null,"timestamp":null,"agentId":"42","agentRegistry":"eip155:1:0x00000000000000000000000000000000000000AA",
		"chainId":1,"transactionHash":null,"logIndex":0,"endpoint":"","deliveryId":"5b0e1c1e-9dad-41d1-80b4-00c04fd430c8"}`))
	f.Add([]byte(`{"deliveryId":"5b0e1c1e-9dad-41d1-80b4-00c04fd430c8","feedbackIndex":1e30}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := decodeValue[Feedback](check, raw)
		if err != nil {
			if len(err.Error()) > 10_000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if len(got.DeliveryID) != 36 || got.FeedbackIndex == 0 || got.Value == "" || !strings.HasPrefix(got.ClientAddress, "0x") {
			t.Errorf("accepted %s as %+v", raw, got)
		}
	})
}
