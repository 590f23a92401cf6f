package trial

import "testing"

var shared Bench

func TestMain(m *testing.M) { shared.Main(m) }
