import { SCENES } from "./backend/fake_scenes";
import type { Stores } from "./state";

const BUTTON_PATIENCE_MS = 3000;

async function press(words: string): Promise<void> {
  const until = performance.now() + BUTTON_PATIENCE_MS;
  while (performance.now() < until) {
    const button = [...document.querySelectorAll("button")].find((b) => b.textContent?.trim() === words && !b.disabled);
    if (button) return button.click();
    await new Promise((done) => setTimeout(done, 20));
  }
  console.error(`There is no button "${words}".`);
}

/** In a plain browser: plays what the state named in the address shows. */
export async function playScene(stores: Stores, name: string): Promise<void> {
  const act = SCENES[name]?.act;
  if (!act) return;
  const { conversation, chats, library, place } = stores;
  if (act.view) place.go(act.view);
  if (act.find !== undefined) library.query = act.find;
  if (act.page !== undefined) {
    await Promise.all([library.refresh(), stores.models.refresh()]);
    library.openAny(act.page);
  }
  if (act.open !== undefined) await conversation.open(act.open);
  if (act.search !== undefined) chats.search(act.search);
  if (act.type !== undefined) conversation.draft = act.type;
  if (act.send !== undefined) {
    conversation.draft = act.send;
    await conversation.send();
  }
  if (act.stopAfterMs !== undefined) setTimeout(() => void conversation.stop(), act.stopAfterMs);
  for (const words of act.press ?? []) await press(words);
}
