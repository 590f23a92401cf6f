// Sends one feedback to the example, as Herald does: npm run send -- SCORE TAG TEXT
import { sendFeedback } from "@agentherald/receiver/testing";

const [score = "20", tag1 = "slow", text = "It took an hour."] = process.argv.slice(2);
const timestamp = Math.floor(Date.now() / 1000);
const feedback = {
  score: Number(score),
  value: score,
  tag1,
  timestamp,
  fileContent: { text },
  fileVerification: "raw" as const,
};
console.log(await sendFeedback("http://127.0.0.1:8082/mcp", feedback));
