// Creates customers through Go's net/http. It repeats a request by itself where its connection was lost and a field
// `Idempotency-Key` says that it may; all else is the loop below.
//
// Usage: go_client URL OPERATIONS
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// Longer than the lease of an instance: a key that a killed instance was executing becomes unknown then.
const tries = 24

func create(url, name string) (string, int, error) {
	key := fmt.Sprintf("%s-%d", name, time.Now().UnixNano())
	var last error
	status := 0
	for attempt := 0; attempt < tries; attempt++ {
		request, _ := http.NewRequest("POST", url+"/v1/customers", strings.NewReader("description="+name))
		request.Header.Set("Authorization", "Bearer sk_test_clients")
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("Idempotency-Key", key)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			last = err
			time.Sleep(50 * time.Millisecond)
			continue
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		status, last = answer.StatusCode, err
		if err == nil && status == 200 {
			var customer struct{ Id string }
			err = json.Unmarshal(text, &customer)
			return customer.Id, status, err
		}
		if err == nil {
			last = fmt.Errorf("%s", text)
			if status != 409 && status < 502 {
				return "", status, last
			}
		}
		time.Sleep(500 * time.Millisecond)
	}
	return "", status, last
}

func main() {
	operations, _ := strconv.Atoi(os.Args[2])
	for number := 0; number < operations; number++ {
		name := fmt.Sprintf("go-%d", number)
		id, status, err := create(os.Args[1], name)
		line := map[string]any{"operation": name, "id": id, "status": status, "error": nil}
		if err != nil {
			line["error"], line["text"], line["id"] = "error", err.Error(), nil
		}
		text, _ := json.Marshal(line)
		fmt.Println(string(text))
	}
}
