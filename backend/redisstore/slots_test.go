package redisstore_test

import (
	"fmt"
	"sync"
)

// keysOfSlot returns a function that returns another key of the slot each time.
func keysOfSlot(slot int, name string) func() string {
	var mu sync.Mutex
	i := 0
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		for {
			i++
			if key := fmt.Sprint(name, i); slotOf(key) == slot {
				return key
			}
		}
	}
}

// slotOf is Redis' CRC16 of a key's tag, which Cluster.SlotOf would have to ask for.
func slotOf(tag string) int {
	crc := uint16(0)
	for _, b := range []byte(tag) {
		crc ^= uint16(b) << 8
		for range 8 {
			if over := crc&0x8000 != 0; over {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc % 16384)
}
