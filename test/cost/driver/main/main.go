// Command main is the driver as a program of its own: see test/cost.
package main

import (
	"log"
	"os"

	"github.com/go-reservoir/reservoir/test/cost/driver"
)

func main() {
	if err := driver.Serve(os.Stdin, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
