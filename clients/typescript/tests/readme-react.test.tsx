// @vitest-environment happy-dom
/** The README's components, run. */

import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import type { ComponentType } from "react";
import { afterAll, afterEach, beforeAll, expect, test, vi } from "vitest";
import { startRefusing } from "./support/refusing.js";
import { load, writeSnippets } from "./support/snippets.js";

let service: Awaited<ReturnType<typeof startRefusing>>;
let directory: string;

beforeAll(async () => {
  service = await startRefusing();
  directory = writeSnippets((code) => code, "react");
  // The page is the service's own, so that its paths are too.
  (window as unknown as { happyDOM: { setURL: (url: string) => void } }).happyDOM.setURL(
    service.url,
  );
});
afterEach(cleanup);
afterAll(() => service?.close());

test.each([
  ["react", "Categorize", "Categorize (? left)", "Categorize (3 left)"],
  ["button", "Send", "Send", "Send"],
])("the component of %s counts down and comes back", async (name, component, before, after) => {
  const loaded = await load(directory, name);
  const Component = loaded[component] as ComponentType;
  render(<Component />);
  const button = screen.getByRole("button") as HTMLButtonElement;
  expect(button.textContent).toBe(before);
  fireEvent.click(button);
  await screen.findByText(/^again in [12] s$/, {}, { timeout: 20_000 });
  expect(button.disabled).toBe(true);
  await screen.findByText(after, {}, { timeout: 20_000 });
  await vi.waitFor(() => expect(button.disabled).toBe(false), { timeout: 20_000 });
});

// The last, as it leaves the service after a refusal.
test("the component of react says nothing when it goes away while it waits", async () => {
  const told = vi.fn();
  vi.stubGlobal("alert", told);
  const { Categorize } = await load(directory, "react");
  const { unmount } = render(<Categorize />);
  fireEvent.click(screen.getByRole("button"));
  await screen.findByText(/^again in [12] s$/, {}, { timeout: 20_000 });
  unmount();
  // A turn of the loop: all that follows from the abort has happened.
  await new Promise((resolve) => setTimeout(resolve));
  expect(told).not.toHaveBeenCalled();
  vi.unstubAllGlobals();
});
