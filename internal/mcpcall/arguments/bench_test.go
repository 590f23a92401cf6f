package arguments

import (
	"encoding/json"
	"testing"
)

// BenchmarkFit measures fitting and validating the arguments of one feedback repeatedly, with warm caches. In a
// delivery, where other work runs in between, it takes several times as long.
func BenchmarkFit(b *testing.B) {
	args := map[string]any{"value": "9977", "score": decimal(9977, 2), "tag1": "uptime", "feedbackIndex": json.Number("3"),
		"deliveryId": "d", "agentId": "42"}
	schema := schemaOf(`{"type":"object","anyOf":[{"required":["value"]}],
		"properties":{"value":{"type":"string"},"score":{"type":"number"}},"additionalProperties":false}`)
	for b.Loop() {
		if _, err := schema.Fit(args); err != nil {
			b.Fatal(err)
		}
	}
}
