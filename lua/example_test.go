package lua_test

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/lua"
)

// A program in any language shares a limit by the scripts. Here one charges 30 of 100 an hour by a statement without
// an account and reads the rest by Check, and a store of this library sees that.
func Example() {
	t, stop := redistest.Example()
	defer stop()
	server := redistest.Start(t) // yours
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1}) // a charge must not be sent twice
	defer client.Close()

	perHour := backend.Limit{Tokens: 100, Window: 3600e9}
	keys := []string{"{user:42}:3600s", "{user:42}:3600s:exp", "{user:42}:3600s:own"}
	charge := []any{"", 100, 3_600_000, 30, 0, 0} // see the header of sync.lua
	reply, err := redis.NewScript(lua.Sync).Run(ctx, client, keys, charge...).Int64Slice()
	if err != nil {
		panic(err)
	}
	fmt.Println("granted", reply[6], "used", reply[4])
	check, err := redis.NewScript(lua.Check).RunRO(ctx, client, keys).Int64Slice()
	if err != nil {
		panic(err)
	}
	fmt.Println("used", check[4])

	store := redisstore.New(client)
	defer store.Close()
	state, err := store.Check(ctx, "user:42", perHour)
	fmt.Println("remaining", state.Remaining, err)
	// Output:
	// granted 30 used 30
	// used 30
	// remaining 70 <nil>
}
