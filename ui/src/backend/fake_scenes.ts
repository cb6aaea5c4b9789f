import { LIBRARY_SCENES } from "./fake_library_scenes";
import type { FakeSetup } from "./fake";
import { scene, type Scene } from "./fake_setup";
import { ANSWER, exchange, NO_HEAD_MODEL, QUESTION, STARTER_MODEL, TOOL_CALL } from "./fake_texts";
import type { DraftMode, Message, Notice } from "./types.gen";

const LONG_CHAT_EXCHANGES = 400;

function running(draft: DraftMode, change: (setup: FakeSetup) => void = () => {}): Scene {
  return scene({ send: QUESTION }, (s) => {
    s.settings.options.draft = draft;
    s.reply.holdAtCycle = 120;
    change(s);
  });
}

function changeLast(setup: FakeSetup, part: Partial<Message>): void {
  const messages = setup.chats[0]!.messages;
  messages[messages.length - 1] = { ...messages.at(-1)!, ...part };
}

function notice(sentence: string, detail: string): Notice {
  return { sentence, detail };
}

const AUTO: DraftMode = { kind: "auto" };

export const SCENES: Record<string, Scene> = {
  default: scene({}),
  "first-start": scene({}, (s) => {
    s.model = null;
    s.settings.lastModel = null;
    s.chats = [];
    s.entries = s.entries.slice(0, 1);
    s.settings.modelFolders = [];
  }),
  "no-model": scene({}, (s) => {
    s.model = null;
    s.load = "cancelled";
  }),
  loading: scene({ type: "What is a residual law?" }, (s) => {
    s.model = null;
    s.load = "stays";
  }),
  "loading-waiting": scene({ send: QUESTION }, (s) => {
    s.model = null;
    s.load = "stays";
  }),
  "load-failed": scene({}, (s) => {
    s.model = null;
    s.load = "fails";
  }),
  prefill: scene({ send: QUESTION }, (s) => {
    s.reply.promptTokens = 13680;
    s.reply.reusedTokens = 5280;
    s.reply.holdPrefillAt = 8400;
  }),
  streaming: running(AUTO),
  stopped: scene({ send: QUESTION, stopAfterMs: 500 }, (s) => (s.reply.thought = null)),
  thinking: running(AUTO, (s) => (s.reply.holdAtCycle = 20)),
  "drafting-on": running({ kind: "fixed", depth: 3 }),
  "drafting-off": running({ kind: "off" }),
  "drafting-auto": running(AUTO),
  "drafting-paused": running(AUTO, (s) => (s.reply.drafting = "loses")),
  "no-head": running(AUTO, (s) => {
    s.model = NO_HEAD_MODEL;
    s.reply.holdAtCycle = 60;
  }),
  starter: scene({ send: QUESTION }, (s) => (s.model = STARTER_MODEL)),
  "context-near": running(AUTO, (s) => (s.reply.contextBefore = 30400)),
  "context-full": scene({ send: QUESTION }, (s) => (s.reply.contextBefore = 32768 - 412 - 160)),
  "error-middle": scene({ send: QUESTION }, (s) => {
    s.reply.failAtCycle = 70;
    s.reply.error = { code: "out_of_memory", message: "The cache does not fit the free memory any more. Close other apps, or start a new chat.", detail: "allocation of 402653184 bytes for cache Full(layer 17) failed\ndevice has 121 MB free" };
  }),
  "empty-search": scene({ search: "quince jam" }),
  search: scene({ search: "draft" }),
  "long-chat": scene({ open: 1 }, (s) => {
    const messages: Message[] = [];
    for (let i = 0; i < LONG_CHAT_EXCHANGES; i++) messages.push(...exchange(i * 2 + 1, `Question ${i + 1}. ${QUESTION}`, ANSWER, Date.now() - (LONG_CHAT_EXCHANGES - i) * 60_000));
    s.chats[0]!.messages = messages;
  }),
  chat: scene({ open: 1 }),
  "tool-call": scene({ open: 1 }, (s) => changeLast(s, { text: TOOL_CALL })),
  recovered: scene({ open: 1 }, (s) => changeLast(s, { text: ANSWER.slice(0, 420), finish: "interrupted", stats: null })),
  notices: scene({}, (s) => {
    s.notices = [
      notice("The last reply was saved up to here when the app closed.", ""),
      notice("The model folder /Volumes/Archive is not there. Connect the disk or remove the folder.", "open /Volumes/Archive: no such file or directory"),
    ];
  }),
  "corrupt-db": scene({}, (s) => {
    s.chats = [];
    s.notices = [notice("The chats could not be read and were set aside. A new file was begun.", "chats.sqlite is malformed at page 41; kept as chats.sqlite.damaged-2026-11-29")];
  }),
  models: scene({ view: "models" }),
  "models-head": scene({ view: "models" }, (s) => (s.entries[2]!.head = "/data/models/Step-3.5-Flash-MTP")),
  "models-headless": scene({ view: "models" }, (s) => (s.model = NO_HEAD_MODEL)),
  // The error comes when a head is chosen.
  "models-head-refused": scene({ view: "models" }, (s) => {
    s.headRefusal = { code: "not_found", message: "There is no MTP head in /data/models/GLM-4.7-Flash. Choose a folder with one, or use the model without.", detail: "no tensor ends with eh_proj.weight" };
  }),
  settings: scene({ view: "settings" }),
  ...LIBRARY_SCENES,
};
