import { SCENES } from "./backend/fake_scenes";
import type { Stores } from "./state";

/** In a plain browser: plays what the state named in the address shows. */
export async function playScene(stores: Stores, name: string): Promise<void> {
  const act = SCENES[name]?.act;
  if (!act) return;
  const { conversation, chats, place } = stores;
  if (act.view) place.go(act.view);
  if (act.open !== undefined) await conversation.open(act.open);
  if (act.search !== undefined) chats.search(act.search);
  if (act.type !== undefined) conversation.draft = act.type;
  if (act.send !== undefined) {
    conversation.draft = act.send;
    await conversation.send();
  }
  if (act.stopAfterMs !== undefined) setTimeout(() => void conversation.stop(), act.stopAfterMs);
}
