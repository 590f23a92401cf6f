package auth

import (
	"fmt"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("%T: %v", err, err))
	}
	return v
}
