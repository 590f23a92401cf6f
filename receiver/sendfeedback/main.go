// Command sendfeedback sends one feedback to an agent, as Herald does, so that an author can try the agent.
//
//	sendfeedback -value 20 -tag slow http://127.0.0.1:8081/mcp
//
// It prints the agent's answer and the id of the delivery. -id sends that delivery again.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/agentherald/herald/receiver"
	"github.com/agentherald/herald/receiver/receivertest"
)

func main() {
	var f receiver.Feedback
	flag.StringVar(&f.Value, "value", "95", "the rating, a whole `number`")
	flag.IntVar(&f.ValueDecimals, "decimals", 0, "the `number` of decimals of -value: 9977 with 2 is 99.77")
	flag.StringVar(&f.Tag1, "tag", "", "the client's own `word`")
	flag.StringVar(&f.ClientAddress, "client", "", "the `address` of the client; default: a sample")
	flag.Uint64Var(&f.FeedbackIndex, "index", 1, "the `number` of this feedback among those of the client")
	flag.StringVar(&f.DeliveryID, "id", "", "the `UUID` of the delivery; default: a new one")
	text := flag.String("text", "", "the `text` in the feedback file")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "sendfeedback: name the URL of the agent, such as http://127.0.0.1:8081/mcp")
		os.Exit(2)
	}
	if *text != "" {
		f.FileContent, _ = json.Marshal(map[string]string{"text": *text}) // cannot fail
		f.FileURI, f.FileVerification, f.FileSource = "data:application/json,sample", "not_given", "data"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	answer, err := receivertest.SendFeedback(ctx, flag.Arg(0), f)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sendfeedback:", err)
		os.Exit(1)
	}
	fmt.Print(answer.Status)
	if answer.Duplicate {
		fmt.Print(", known before")
	}
	if answer.Error != "" {
		fmt.Printf(": %s", answer.Error)
	}
	fmt.Println("\n-id", answer.DeliveryID)
	if answer.Status != receiver.StatusAccepted {
		os.Exit(1)
	}
}
