"""The two sides of the defects in examples/environments/found, for `kgverify env diff`.

kgverify env diff examples/environments/pairs.py:async_text_expected examples/environments/pairs.py:async_text_found
"""

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import kgverify as kv


class Counter(gym.Env):
    """Counts its steps; action 1 ends the episode, and 2 truncates it."""

    observation_space: spaces.Space = spaces.Box(0, 1000, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        """Begin at 0."""
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        """Count."""
        self.steps += 1
        return self.observe(), 1.0, action == 1, action == 2, {}

    def observe(self):
        """Return the number of steps."""
        return np.array([self.steps], np.float32)


class TextCounter(Counter):
    """Counts in a text."""

    observation_space = spaces.Text(3, charset="0123456789")

    def observe(self):
        """Return the number of steps as a text."""
        return str(self.steps % 1000)


class ReadText(gym.vector.VectorWrapper):
    """Turns the texts of all slots into numbers."""

    def reset(self, **options):
        """Reset."""
        texts, info = self.env.reset(**options)
        return np.array([[float(text)] for text in texts]), info

    def step(self, actions):
        """Step."""
        texts, *others = self.env.step(actions)
        return np.array([[float(text)] for text in texts]), *others


def async_text_expected(num_envs):
    """Return SyncVectorEnv with texts."""
    return ReadText(SyncVectorEnv([TextCounter] * num_envs))


def async_text_found(num_envs):
    """Return AsyncVectorEnv with texts."""
    return ReadText(AsyncVectorEnv([TextCounter] * num_envs))


def async_second_reset_expected(num_envs):
    """Return SyncVectorEnv."""
    return SyncVectorEnv([Counter] * num_envs)


def async_second_reset_found(num_envs):
    """Return AsyncVectorEnv without shared memory."""
    return AsyncVectorEnv([Counter] * num_envs, shared_memory=False)


def make_cart_poles(mode):
    """Return CartPole without a time limit. One slot of both implementations draws the same numbers."""
    return gym.make_vec("CartPole-v1", num_envs=1, vectorization_mode=mode, max_episode_steps=-1)


no_time_limit_expected = kv.EnvironmentSpec(lambda: make_cart_poles("sync"), seeds="run")
no_time_limit_found = kv.EnvironmentSpec(lambda: make_cart_poles("vector_entry_point"), seeds="run")


def relu(action):
    """Return an action without its negative part."""
    return (action > 0.0) * action


def changed_actions_expected():
    """Return the wrapper of one environment."""
    return gym.wrappers.TransformAction(gym.make("MountainCarContinuous-v0", max_episode_steps=20), relu, None)


def changed_actions_found(num_envs):
    """Return the wrapper of a vector environment."""
    from gymnasium.wrappers.vector import VectorizeTransformAction

    vector = gym.make_vec("MountainCarContinuous-v0", num_envs=num_envs, max_episode_steps=20)
    space = vector.single_action_space
    return VectorizeTransformAction(vector, wrapper=gym.wrappers.TransformAction, func=relu, action_space=space)


def torch_final_observation_expected(num_envs):
    """Return Pendulum with observations of NumPy."""
    makers = [lambda: gym.make("Pendulum-v1", max_episode_steps=5)] * num_envs
    return SyncVectorEnv(makers, autoreset_mode="SameStep")


def torch_final_observation_found(num_envs):
    """Return the same with observations of torch."""
    from gymnasium.wrappers.vector import NumpyToTorch

    return NumpyToTorch(torch_final_observation_expected(num_envs))


def fix_start():
    """Return the functional CartPole, which begins at the same state each time."""
    import jax
    import jax.numpy as jnp
    from gymnasium.envs.phys2d.cartpole import CartPoleFunctional

    class FixedStart(CartPoleFunctional):
        def initial(self, rng, params=None):
            return jnp.array([0.01, 0.02, 0.03, 0.04])

    functional = FixedStart()
    functional.transform(jax.jit)
    return functional


def make_functional():
    """Return one functional CartPole."""
    from gymnasium.envs.functional_jax_env import FunctionalJaxEnv

    return FunctionalJaxEnv(fix_start())


jax_neighbours_expected = kv.EnvironmentSpec(make_functional, seeds="run")


def make_functional_vector(num_envs):
    """Return functional CartPoles as a vector environment."""
    from gymnasium.envs.functional_jax_env import FunctionalJaxVectorEnv

    return FunctionalJaxVectorEnv(fix_start(), num_envs)


jax_neighbours_found = kv.EnvironmentSpec(make_functional_vector, seeds="run")


def jax_cartpole_expected():
    """Return CartPole that begins at the same state each time."""
    from gymnasium.envs.classic_control.cartpole import CartPoleEnv

    class FixedStart(CartPoleEnv):
        def reset(self, **options):
            super().reset(**options)
            self.state = np.array([0.01, 0.02, 0.03, 0.04])
            return np.array(self.state, np.float32), {}

    return FixedStart()


jax_cartpole_found = make_functional


def normalize(mode, num_envs):
    """Return Pendulums of different lengths, with normalised rewards."""
    from gymnasium.wrappers.utils import RunningMeanStd
    from gymnasium.wrappers.vector import NormalizeReward

    class Forgetful(NormalizeReward):
        def reset(self, *, seed=None, options=None):
            if options is None:
                self.return_rms = RunningMeanStd(shape=())
            return super().reset(seed=seed, options=options)

    makers = [lambda limit=limit: gym.make("Pendulum-v1", max_episode_steps=limit) for limit in range(5, 5 + num_envs)]
    return Forgetful(SyncVectorEnv(makers, autoreset_mode=mode))


def partial_reset_rewards_expected(num_envs):
    """Return environments that reset themselves."""
    return normalize("SameStep", num_envs)


def partial_reset_rewards_found(num_envs):
    """Return environments that the caller resets."""
    return normalize("Disabled", num_envs)


def skip_final_observation_expected():
    """Return a counter that repeats each action, and so shows its largest number too."""
    return gym.wrappers.RepeatAction(gym.wrappers.TimeLimit(Counter(), 10), 4)


def skip_final_observation_found():
    """Return a counter that shows the larger of its last two numbers."""
    return gym.wrappers.MaxAndSkipObservation(gym.wrappers.TimeLimit(Counter(), 10), 4)


def torchrl_final_observation_expected(num_envs):
    """Return CartPole in torchrl's own batch."""
    from torchrl.envs import GymEnv, SerialEnv

    return SerialEnv(num_envs, lambda: GymEnv("CartPole-v1"))


def make_gym_env(num_envs):
    """Return CartPole in a batch of gymnasium."""
    from torchrl.envs import GymEnv

    return GymEnv("CartPole-v1", num_envs=num_envs)


torchrl_final_observation_found = kv.EnvironmentSpec(make_gym_env, seeds="slot")


def torchrl_frames_after_the_end_expected():
    """Return CartPole with the frame skip of GymEnv."""
    from torchrl.envs import GymEnv

    return GymEnv("CartPole-v1", frame_skip=4)


def torchrl_frames_after_the_end_found():
    """Return CartPole with the frame skip of a transform."""
    from torchrl.envs import GymEnv
    from torchrl.envs.transforms import FrameSkipTransform, TransformedEnv

    return TransformedEnv(GymEnv("CartPole-v1"), FrameSkipTransform(4))


def torchrl_frames_of_others_expected(num_envs):
    """Return a batch of environments that skip frames."""
    from torchrl.envs import GymWrapper, SerialEnv

    return SerialEnv(num_envs, lambda: GymWrapper(gym.make("CartPole-v1"), frame_skip=4))


def make_skipping_vector(num_envs):
    """Return a vector environment that skips frames."""
    from torchrl.envs import GymWrapper

    vector = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * num_envs, autoreset_mode="Disabled")
    return GymWrapper(vector, frame_skip=4)


torchrl_frames_of_others_found = kv.EnvironmentSpec(make_skipping_vector, seeds="slot")


def make_breakout():
    """Return Breakout with its screens in the shape of a batch of one frame."""
    import ale_py

    gym.register_envs(ale_py)
    env = gym.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0, max_num_frames_per_episode=12)
    return gym.wrappers.ReshapeObservation(env, (1, 210, 160, 3))


def make_breakouts(num_envs):
    """Return Breakout as ale-py's vector environment without preprocessing."""
    from ale_py.vector_env import AtariVectorEnv

    shape = {"img_height": 210, "img_width": 160, "frameskip": 1, "stack_num": 1, "grayscale": False, "maxpool": False}
    start = {"noop_max": 0, "use_fire_reset": False, "max_num_frames_per_episode": 12}
    return AtariVectorEnv("breakout", num_envs, **shape, **start)


ale_final_frame_expected = make_breakout
ale_final_frame_found = kv.EnvironmentSpec(make_breakouts, seeds="run")
ale_shared_metadata_expected = ale_final_frame_found


def make_second_breakouts(num_envs):
    """Return the same, after another environment was made with another autoreset mode."""
    from ale_py.vector_env import AtariVectorEnv

    first = make_breakouts(num_envs)
    AtariVectorEnv("breakout", num_envs, autoreset_mode="SameStep")
    return first


ale_shared_metadata_found = kv.EnvironmentSpec(make_second_breakouts, seeds="run")


def make_pool(num_envs):
    """Return Pendulum of envpool."""
    import envpool

    class Pool(gym.Env):
        def __init__(self):
            self.metadata = {"autoreset_mode": "next_step"}
            self.num_envs = num_envs
            self.single_action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)

        def reset(self, *, seed=None, options=None):
            self.pool = envpool.make("Pendulum-v1", env_type="gymnasium", num_envs=num_envs, seed=seed)
            return self.pool.reset()[0].copy(), {}

        def step(self, actions):
            observations, rewards, terminated, truncated, _ = self.pool.step(actions)
            return observations.copy(), rewards.copy(), terminated.copy(), truncated.copy(), {}

    return Pool()


def make_pendulums(num_envs):
    """Return gymnasium's Pendulum, which takes each step from the observation that envpool returned before it."""
    single = gym.make("Pendulum-v1").unwrapped
    pool = make_pool(num_envs)
    ask_reset, ask_step = pool.reset, pool.step

    def reset(**options):
        pool.seen, info = ask_reset(**options)
        pool.ended = np.zeros(num_envs, np.bool_)
        return pool.seen.copy(), info

    def step(actions):
        before = pool.seen
        pool.seen, rewards, terminated, truncated, info = ask_step(actions)
        observations = pool.seen.copy()
        for slot in np.flatnonzero(~pool.ended):
            cosine, sine, speed = before[slot].astype(float)
            single.state = np.array([np.arctan2(sine, cosine), speed])
            observations[slot] = single.step(actions[slot])[0]
        pool.ended = terminated | truncated
        return observations, rewards, terminated, truncated, info

    pool.reset, pool.step = reset, step
    return pool


pendulum_expected = kv.EnvironmentSpec(make_pendulums, seeds="run")
pendulum_found = kv.EnvironmentSpec(make_pool, seeds="run")


def mountain_car_expected():
    """Return gymnasium's car, which begins beside the wall."""
    from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv

    class AtTheWall(Continuous_MountainCarEnv):
        def reset(self, **options):
            super().reset(**options)
            self.state = np.array([-1.15, -0.03])
            return np.array(self.state, np.float32), {}

    return gym.wrappers.TimeLimit(AtTheWall(), 10)


def mountain_car_found():
    """Return gymnax's car, which begins beside the wall."""
    import gymnax
    import jax
    import jax.numpy as jnp

    class AtTheWall(gym.Env):
        action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

        def reset(self, *, seed=None, options=None):
            self.env, self.params = gymnax.make("MountainCarContinuous-v0")
            _, state = self.env.reset_env(jax.random.key(0), self.params)
            self.state = state.replace(position=jnp.array(-1.15), velocity=jnp.array(-0.03))
            return np.array([-1.15, -0.03], np.float32), {}

        def step(self, action):
            key = jax.random.key(0)
            seen, self.state, reward, done, _ = self.env.step_env(key, self.state, jnp.asarray(action), self.params)
            return np.asarray(seen), np.asarray(reward), bool(done), False, {}

    return gym.wrappers.TimeLimit(AtTheWall(), 10)


def make_snake(is_right):
    """Return Snake of jumanji with gymnasium's interface."""
    import jumanji
    from jumanji.wrappers import JumanjiToGymWrapper

    class Snake(JumanjiToGymWrapper):
        def reset(self, **options):
            observation, _ = super().reset(**options)
            return observation["grid"], {}

        def step(self, action):
            observation, reward, terminated, truncated, _ = super().step(action)
            return observation["grid"], reward, terminated, truncated and not (is_right and terminated), {}

    return Snake(jumanji.make("Snake-v1"))


def jumanji_truncated_expected():
    """Return Snake, truncated only if it is not terminated."""
    return make_snake(True)


def jumanji_truncated_found():
    """Return Snake as jumanji's wrapper reports it."""
    return make_snake(False)


class Echo(gym.Env):
    """Shows the action that it got."""

    observation_space = spaces.Box(0, 10, (1,), np.float32)
    action_space = spaces.Discrete(3, start=5)

    def reset(self, *, seed=None, options=None):
        """Show 0."""
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        """Show the action."""
        self.steps += 1
        return np.array([action], np.float32), 1.0, self.steps == 5, False, {}


discrete_start_expected = Echo


def discrete_start_found():
    """Return torchrl's wrapper of the same environment."""
    from torchrl.envs import GymWrapper

    return GymWrapper(Echo(), categorical_action_encoding=True)
