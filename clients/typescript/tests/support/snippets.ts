/** The README's snippets, each written out as a module that can be type-checked and run. */

import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const root = join(import.meta.dirname, "../..");
const SNIPPET = /<!-- run: (\w+) -->\n```(tsx?)\n(.*?)```/gs;

export interface Snippet {
  name: string;
  extension: string;
  code: string;
}

export function snippets(): Snippet[] {
  const readme = readFileSync(join(root, "README.md"), "utf8");
  return Array.from(readme.matchAll(SNIPPET), ([, name = "", extension = "", code = ""]) => ({
    name,
    extension,
    code,
  }));
}

/** How many code blocks of a language that could be run there are. */
export function blocks(): number {
  const readme = readFileSync(join(root, "README.md"), "utf8");
  return readme.match(/^```(ts|tsx|js)$/gm)?.length ?? 0;
}

/** Writes them to a directory inside the package, so that it is found by its own name. */
export function writeSnippets(change: (code: string) => string, under: string): string {
  const directory = join(root, ".readme", under);
  rmSync(directory, { recursive: true, force: true });
  mkdirSync(directory, { recursive: true });
  for (const { name, extension, code } of snippets()) {
    writeFileSync(join(directory, `${name}.${extension}`), change(code));
  }
  return directory;
}

/** The module a snippet was written to. */
export function load(directory: string, name: string) {
  const extension = snippets().find((snippet) => snippet.name === name)?.extension;
  return import(/* @vite-ignore */ join(directory, `${name}.${extension}`));
}

/** What the snippet says it prints: the comments behind its `console.log`s. */
export function promised(name: string): string[] {
  const code = snippets().find((snippet) => snippet.name === name)?.code ?? "";
  return Array.from(code.matchAll(/console\.log\(.*\/\/ (.*)$/gm), ([, text = ""]) => text);
}
