import { fireEvent, screen, waitFor } from "@testing-library/svelte";
import { expect, test } from "vitest";
import { download, HUB_ERRORS } from "../src/backend/fake_shelf";
import { main, models, OFFER, page } from "./models_view";
import { failure } from "./support";

test("a stale token leads to its field, which takes a new one and never shows it", async () => {
  const { backend, stores } = await page(OFFER, (s) => (s.library.downloads = [download({ state: { kind: "failed", error: HUB_ERRORS.stale } })]));
  await fireEvent.click(await main().findByText("Set a token…"));
  const input = await screen.findByLabelText<HTMLInputElement>("Access token", { selector: "input" });
  await waitFor(() => expect(document.activeElement).toBe(input));
  expect(input.type).toBe("password");
  expect(stores.place.tokenWanted).toBe(false);
  backend.refuseNext.set("token_set", { ...failure, message: "The keychain refused. Try again." });
  await fireEvent.input(input, { target: { value: "  secret " } });
  await fireEvent.submit(input.form!);
  expect((await screen.findByText("The keychain refused. Try again.")).getAttribute("role")).toBe("alert");
  expect(input.value).toBe("  secret ");
  await fireEvent.submit(input.form!);
  await waitFor(() => expect(screen.getByTestId("token-place").textContent).toBe("One is kept in the keychain."));
  expect(backend.calls.findLast((c) => c.cmd === "token_set")?.req).toEqual({ token: "secret" });
  await waitFor(() => expect(input.value).toBe(""));
  expect(document.body.innerHTML).not.toContain("secret");
  await fireEvent.click(screen.getByText("Forget it"));
  await waitFor(() => expect(screen.getByTestId("token-place").textContent).toBe("None is set. Public models need none."));
});

test("a token of the environment wins, so none can be typed that would be ignored", async () => {
  const { stores } = await models((s) => (s.library.token = "environment"));
  stores.place.goToToken();
  await waitFor(() => expect(screen.getByTestId("token-place").textContent).toContain("HF_TOKEN"));
  expect(screen.queryByLabelText("Access token", { selector: "input" })).toBeNull();
});

test("endpoint, proxy and limit are taken when the field is left; a refusal keeps what was set", async () => {
  const { backend, stores, count } = await models();
  stores.place.go("settings");
  const limit = await screen.findByLabelText<HTMLInputElement>("Most MB per second");
  await fireEvent.input(limit, { target: { value: "fast" } });
  await fireEvent.change(limit);
  expect(await screen.findByText(/number above 0/)).toBeTruthy();
  expect(count("settings_set")).toBe(0);
  await fireEvent.input(limit, { target: { value: "2.5" } });
  await fireEvent.change(limit);
  await waitFor(() => expect(stores.settings.value.downloadLimit).toBe(2621440));
  const endpoint = screen.getByLabelText<HTMLInputElement>("Address of the hub");
  backend.refuseNext.set("settings_set", { ...failure, code: "invalid_option", message: "No hub is there. Check the address." });
  await fireEvent.input(endpoint, { target: { value: "https://hub.example" } });
  await fireEvent.change(endpoint);
  expect(await screen.findByText("No hub is there. Check the address.")).toBeTruthy();
  expect(stores.settings.value.hubEndpoint).toBeNull();
  expect(stores.settings.value.downloadLimit).toBe(2621440);
  expect(endpoint.value).toBe("https://hub.example");
});
