import { cleanup, configure } from "@testing-library/svelte";
import { afterEach } from "vitest";
import { PATIENCE_MS } from "./support";

configure({ asyncUtilTimeout: PATIENCE_MS });
afterEach(() => cleanup());
