package bench

import (
	"log"
	"os"
	"testing"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(asProcess) == "" {
		redistest.Main(m)
		return
	}
	if err := process(os.Stdin, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
