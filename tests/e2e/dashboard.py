"""Page object of the dashboard."""

from pathlib import Path

from playwright.sync_api import BrowserContext, Page, expect

from tests.services import System


class DashboardUser:
    """A user with the dashboard open, on the card of one workspace."""

    def __init__(self, context: BrowserContext, system: System, screenshots: Path) -> None:
        self.context = context
        self.system = system
        self.page = context.new_page()
        self.card = self.page.get_by_test_id("workspace-card")
        self._screenshots = screenshots

    def take_screenshot(self, name: str, page: Page | None = None) -> None:
        (page or self.page).screenshot(path=self._screenshots / f"{name}.png")

    def sign_in(self, username: str, password: str) -> None:
        self.page.goto(self.system.base_url)
        self.page.get_by_test_id("login-username").fill(username)
        self.page.get_by_test_id("login-password").fill(password)
        self.take_screenshot("1-sign-in")
        self.page.get_by_test_id("login-submit").click()

    def create(self, name: str) -> str:
        self.page.get_by_test_id("new-workspace").first.click()
        self.page.get_by_test_id("create-name").fill(name)
        self.take_screenshot("2-create")
        self.page.get_by_test_id("create-submit").click()
        return str(self.card.get_attribute("data-workspace-id"))

    def select_workspace(self, workspace_id: str) -> None:
        """Select the card of this workspace."""
        self.card = self.page.locator(f'[data-testid="workspace-card"][data-workspace-id="{workspace_id}"]')

    def expect_phase(self, phase: str) -> None:
        expect(self.card).to_have_attribute("data-phase", phase)
        expect(self.card).to_have_attribute("data-operation", "NONE")

    def click_action(self, action: str) -> None:
        self.page.get_by_test_id(f"action-{action}").click()

    def open_workspace(self) -> Page:
        with self.context.expect_page() as opened:
            self.click_action("open")
        return opened.value
