/** The example page: five messages pass, the sixth waits in the button and is then sent. */

import { useState } from "react";
import { createRoot } from "react-dom/client";
import { type Attempt, RateLimitButton, useRateLimit } from "tollgate/react";

function Page() {
  const limit = useRateLimit();
  const [lines, setLines] = useState<string[]>([]);
  const note = (line: string) => setLines((before) => [...before, line]);

  async function send({ observe, signal, attempt }: Attempt) {
    const response = observe(await fetch("/api/send", { method: "POST", signal }));
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    const { sent } = await response.json();
    note(attempt === 1 ? `message ${sent} sent` : `message ${sent} sent, after waiting`);
  }

  return (
    <main>
      <h1>A button that waits</h1>
      <p>Five messages may be sent within any eight seconds. Press until it is too much.</p>
      <RateLimitButton
        limit={limit}
        onPress={send}
        onError={(error) => note(error instanceof Error ? error.message : String(error))}
        limitedLabel={(seconds) => `Send again in ${seconds} s`}
      >
        Send a message
      </RateLimitButton>
      {limit.remaining !== null && <span className="left">{limit.remaining} left</span>}
      <ol>
        {lines.map((line) => (
          <li key={line}>{line}</li>
        ))}
      </ol>
    </main>
  );
}

const root = document.getElementById("root");
if (root) createRoot(root).render(<Page />);
