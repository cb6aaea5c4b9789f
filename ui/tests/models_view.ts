import { render, screen, waitFor, within } from "@testing-library/svelte";
import { expect } from "vitest";
import App from "../src/App.svelte";
import type { FakeSetup } from "../src/backend/fake";
import { started } from "./support";

export const OFFER = "glm-4.7-flash";
export const TITLE = "GLM-4.7-Flash, 4-bit";
export const REPOSITORY = "acme/GLM-4.7-Flash-4bit";
export const TYPED = "acme/Qwen3.6-27B-MTP-4bit";

/** The window with its models; downloads stay as they are. */
export async function models(change: (s: FakeSetup) => void = () => {}) {
  const ready = await started((s) => {
    s.library.moves = false;
    change(s);
  });
  ready.stores.place.go("models");
  render(App, { stores: ready.stores });
  await waitFor(() => expect(ready.stores.library.listed && ready.stores.models.listed).toBe(true));
  const count = (cmd: string) => ready.backend.calls.filter((c) => c.cmd === cmd).length;
  return { ...ready, count };
}

/** The page of an offer or of a model on the disk, by its id, or of a repository, by its name. */
export async function page(id: string, change: (s: FakeSetup) => void = () => {}) {
  const ready = await models(change);
  ready.stores.library.openAny(id);
  await waitFor(() => expect(ready.stores.library.looking).toBe(false));
  return ready;
}

export const article = (name: string) => within(screen.getByRole("article", { name }));
export const main = () => within(screen.getByRole("main"));
export const button = (name: string | RegExp) => main().getByRole<HTMLButtonElement>("button", { name });
